"""Rewrites a person's rows in the journal and in usage, commit by commit, while the applications write on."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import date

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from jobs.audit.tables.append import ERASURES
from jobs.journal.elements import has_elements
from jobs.journal.erasing import READ, erased
from jobs.runtime.delta.deciding_rows import files_of
from jobs.runtime.delta.growth import with_stored_columns
from jobs.runtime.delta.parquet import OF_MANY_ROWS
from jobs.runtime.delta.scans import scan_files
from jobs.runtime.delta.table import AFTER_COMMIT, ONE_FILE_BYTES, open_to_change
from jobs.runtime.errors import Refused
from jobs.streams import CatalogTopic, Table
from metering.erasure import Erased, ErasureKey, People, pseudonym

log = structlog.get_logger()

MAX_ROWS = 200_000
"""In memory, and in a commit, unless a file has more."""
MAX_LSN = 2**62
MAX_ATTEMPTS = 100
"""Of one day, against commits of others that change the same files."""
Change = Callable[[pl.LazyFrame], pl.DataFrame]
"""Rows of a log date → `lsn` of those that must be different, with new columns."""


@dataclass(frozen=True)
class Person:
    """Whom to forget. `aggregated`: meters that count different users, in whose members the name stands."""

    erasure: int
    account: str
    user_id: str
    key: ErasureKey
    aggregated: Collection[str] = ()

    @property
    def pseudonym(self) -> str:
        """What stands in the place of the name."""
        return pseudonym(self.erasure)

    @property
    def people(self) -> People:
        """This person alone, to be recognised."""
        person = self.key.person(self.account, self.user_id)
        return People([Erased(self.erasure, self.account, person, self.key.id)], [self.key])

    def changed_journal(self, rows: pl.LazyFrame) -> pl.DataFrame:
        """Rows of the journal → what `jobs.journal.erasing` makes of this person's."""
        held = rows.collect_schema().names()
        is_of_account = pl.col("account").is_null() | (pl.col("account") == self.account)
        # Rows of other users whose fields were read are not of this person, and most rows are such.
        is_read = pl.col("user_id").is_not_null() & (pl.col("user_id") != self.user_id)
        is_alone = pl.col("element").is_null() if has_elements(rows.collect_schema()) else pl.lit(value=True)
        few = rows.filter(is_of_account & ~(is_read & is_alone & (pl.col("disposition") != "rejected")))
        found = few.select(name for name in READ if name in held).collect()
        return erased(found, self.people, CatalogTopic).select(
            name for name in ("lsn", "user_id", "value", "key", "record_headers", "violation") if name in held
        )

    def changed_usage(self, rows: pl.LazyFrame) -> pl.DataFrame:
        """Rows of usage → those that name this person, with another `user_id`, and other dimensions and members."""
        name = json.dumps(self.user_id, ensure_ascii=False)
        held = rows.collect_schema().names()
        texts = [column for column in ("dimensions", "members") if column in held]
        mentions = [pl.col(column).str.contains(name, literal=True).fill_null(value=False) for column in texts]
        is_theirs = (pl.col("user_id") == self.user_id).fill_null(value=False)
        of_account = rows.filter((pl.col("account") == self.account) & pl.any_horizontal(is_theirs, *mentions))
        found = of_account.select("lsn", "user_id", "outcome", *texts).collect()
        changed = found.with_columns(
            user_id=pl.when(pl.col("user_id") == self.user_id).then(pl.lit(self.pseudonym)).otherwise("user_id"),
            **{column: pl.Series(map(self._of(column), found[column]), dtype=pl.String) for column in texts},
        )
        differs = [changed[column].ne_missing(found[column]) for column in ("user_id", *texts)]
        return changed.filter(pl.any_horizontal(differs)).drop("outcome")

    def _of(self, column: str) -> Callable[[str | None], str | None]:
        return self._dimensions if column == "dimensions" else self._members

    def _dimensions(self, text: str | None) -> str | None:
        values = json.loads(text) if text else {}
        if values.get("user_id") != self.user_id:
            return text
        return json.dumps({**values, "user_id": self.pseudonym}, ensure_ascii=False, separators=(",", ":"))

    def _members(self, text: str | None) -> str | None:
        entries = json.loads(text) if text else []
        for entry in entries:
            if entry["meter"] in self.aggregated and entry["member"] == self.user_id:
                entry["member"] = self.pseudonym
        return json.dumps(entries, ensure_ascii=False, separators=(",", ":")) if entries else text

    def change(self, table: Table) -> Change:
        """What becomes of the rows of a table."""
        return self.changed_journal if table is Table.JOURNAL else self.changed_usage


@dataclass(frozen=True)
class Rewritten:
    """How many rows of one log date were changed in one commit."""

    table: str
    log_date: date
    rows: int


def rewrite(tables: str, table: Table, person: Person) -> Iterator[Rewritten]:
    """Change a person's rows, log date by log date, a stretch of files in a commit.

    No row comes or goes, `lsn`, identities, digests and amounts stay, and streams pass over the commits. The commit
    names rows by their lsn alone. Raises Refused for a newer version's table, or where others change a day all along.
    """
    found = open_to_change(tables, table)
    days = [] if found is None else sorted({date.fromisoformat(str(part["log_date"])) for part in found.partitions()})
    for day in days:
        after = -1
        while (done := _next_stretch(tables, table, day, person, after)) is not None:
            after, rows = done
            if rows:
                yield Rewritten(table.value, day, rows)


def _next_stretch(tables: str, table: Table, day: date, person: Person, after: int) -> tuple[int, int] | None:
    """The last lsn of the next stretch beyond `after`, and how many of its rows were changed; None: there is none."""
    for attempt in range(MAX_ATTEMPTS):
        found = open_to_change(tables, table)
        stretch = next((lsns for lsns in stretches(found, day) if lsns[1] > after), None) if found else None
        if found is None or stretch is None:
            return None
        is_in_it = pl.col("lsn").is_between(*stretch)
        new = person.change(table)(rows_of(found, day).filter(is_in_it))
        if new.is_empty():
            return stretch[1], 0
        try:
            replace_rows(found, table, day, stretch, new)
        except CommitFailedError as error:
            log.info("others changed the same files meanwhile", table=table, attempt=attempt, why=str(error))
        else:
            return stretch[1], len(new)
    raise Refused(
        f"{table} of {day} is changed by others all the time; run `weir forget` again, and not `weir compact`"
    )


def stretches(table: DeltaTable, day: date) -> list[tuple[int, int]]:
    """The first and last lsn of each stretch of a log date: whole files, about MAX_ROWS rows or one file."""
    actions = pl.DataFrame(table.get_add_actions(flatten=True)).filter(pl.col("partition.log_date") == day)
    for name in ("min.lsn", "max.lsn"):
        if name not in actions.columns:
            actions = actions.with_columns(pl.lit(None, pl.Int64).alias(name))
    files = actions.select(pl.col("min.lsn").fill_null(0), pl.col("max.lsn").fill_null(MAX_LSN), "num_records").sort(
        "min.lsn", "max.lsn"
    )
    found: list[tuple[int, int]] = []
    rows = 0
    for first, last, records in files.iter_rows():
        # A file is never cut: what were left of it would be written by the query engine, in types that Arrow cannot
        # compare with texts.
        if found and (first <= found[-1][1] or rows + records <= MAX_ROWS):
            found[-1] = found[-1][0], max(found[-1][1], last)
            rows += records
        else:
            found.append((first, last))
            rows = records
    return found


def rows_of(table: DeltaTable, day: date) -> pl.LazyFrame:
    """The rows of a log date; columns that a file lacks are null."""
    schema = pl.DataFrame(pa.schema(table.schema().to_arrow()).empty_table()).schema
    uris = table.file_uris(file_pruning_predicate=[("log_date", "=", day.isoformat())])
    if not uris:
        return pl.LazyFrame(schema=schema)
    return scan_files(uris, {name: kind for name, kind in schema.items() if name != "log_date"})


def replace_rows(found: DeltaTable, table: Table, day: date, stretch: tuple[int, int], new: pl.DataFrame) -> None:
    """Replace the rows of a stretch, with these columns in some. Raises CommitFailedError where it has changed."""
    first, last = stretch
    is_in_it = (pc.field("lsn") >= first) & (pc.field("lsn") <= last)
    rows = files_of(found, day).to_table(filter=is_in_it).sort_by("lsn")
    joined = pl.DataFrame(rows.select(["lsn", *new.columns[1:]])).join(
        new.with_columns(is_new=True), on="lsn", how="left", maintain_order="left", suffix=" new"
    )
    for name in new.columns[1:]:
        column = pl.when("is_new").then(f"{name} new").otherwise(name).alias(name)
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(
            place, rows.field(place), joined.select(column).to_arrow()[name].cast(rows.field(place).type)
        )
    # Moved by each commit: an audit that began before has read the name, and must begin again.
    noted = [] if table is Table.JOURNAL else [Transaction(ERASURES, found.version() + 1)]
    write_deltalake(
        found,
        with_stored_columns(rows, pa.schema(found.schema().to_arrow())),
        mode="overwrite",
        predicate=f"log_date = DATE '{day}' AND lsn >= {first} AND lsn <= {last}",
        target_file_size=ONE_FILE_BYTES,
        writer_properties=OF_MANY_ROWS,
        commit_properties=CommitProperties(custom_metadata={"weir": "forget"}, app_transactions=noted),
        post_commithook_properties=AFTER_COMMIT,
    )
