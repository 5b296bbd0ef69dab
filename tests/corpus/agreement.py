"""What must hold of metered mutants: each has one row, both readers agree on it, it is billed once or not at all.

Of an event the readers are the validator (`EventValidator`) and one in Python (`oracle_events`); of a catalog change
what ingestion let pass and joins stored, and a second one in Python (`oracle_catalog`).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context as Arithmetic
from decimal import Decimal
from typing import Any

import polars as pl
import psycopg

from jobs.joins.catalog import KEY_OF, TABLE_OF
from jobs.streams import METERED, SOURCE, CatalogTopic, Table
from metering.contracts.keywords import COLUMNS
from metering.meters import REPORTED_COLUMNS, Meter
from metering.vocabulary import BILLABLE, REQUESTS, Disposition, Outcome, Reason, UsageCause
from tests.corpus.metered import DEVICE, Metered, Place
from tests.corpus.mutate import Mutant
from tests.corpus.mutations_of_bytes import MAX_BYTES
from tests.pipelines.deep_json import deep
from tests.pipelines.oracle_catalog import Refused, change_of
from tests.pipelines.oracle_events import said

EXACT = Arithmetic(prec=80)
WHEN_AND_WHO = ("committed_at", "changed_by", "changed_at", "ends_at")
WINDOWS = "SELECT meter, sum(quantity) FROM usage_windows GROUP BY 1"
SESSIONS = "SELECT coalesce(sum(events), 0) FROM sessions"
Row = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """What does not hold, and of which record (None: nobody knows)."""

    text: str
    mutant: Mutant | None = None


def problems(found: Metered) -> Iterator[Problem]:
    """All that does not hold."""
    rows = {_place(row): row for row in found.tables[Table.JOURNAL].iter_rows(named=True)}
    if len(rows) != len(found.tables[Table.JOURNAL]) or rows.keys() != found.sent.keys():
        missing = [found.sent[place] for place in found.sent.keys() - rows.keys()]
        yield Problem(f"{len(found.sent)} records, {len(found.tables[Table.JOURNAL])} rows, {len(missing)} missing")
        return
    yield from (
        Problem(text, one)
        for place, one in found.sent.items()
        for text in _of_row(place, rows[place], one, one_value(rows[place]))
    )
    yield from _of_repeats(found, rows)
    yield from _of_versions(found, rows)
    yield from _of_usage(found)
    yield from _of_sums(found)


def counted(found: Metered) -> Counter[tuple[str, str, str]]:
    """Mutants by what they were, disposition and reason."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in found.tables[Table.JOURNAL].iter_rows(named=True):
        if found.sent[_place(row)] is not None:
            kind = "catalog change" if row["topic"] in set(CatalogTopic) else "event"
            counts[kind, row["disposition"], row["reason"] or ""] += 1
    return counts


def one_value(row: Row) -> bytes | None:
    """The payload that the row keeps."""
    return row["value"] if row["value"] is None else bytes(row["value"])


def _place(row: Row) -> Place:
    return row["topic"] if row["topic"] in set(CatalogTopic) else "events", row["partition"], row["offset"]


def _of_row(place: Place, row: Row, one: Mutant | None, value: bytes | None) -> Iterator[str]:
    if (row["disposition"] == Disposition.REJECTED) != (row["reason"] is not None):
        yield f"is {row['disposition']} with reason {row['reason']}"
    sent = None if one is None else one.draft.value
    # Of a valid record the JSON is kept, without the frame of a schema registry; of a dead letter what was sent.
    is_framed = row["reason"] is None and sent is not None and sent.startswith(b"\0")
    if one is not None and row["reason"] != Reason.TOO_LARGE and value != (sent[5:] if is_framed and sent else sent):
        yield f"is kept as {value!r:.200}"
    if place[0] != "events":
        return
    if one is None:
        if row["reason"] is not None:
            yield f"a valid event is rejected: {row['reason']}"
        return
    expected: str | None
    if len(one.draft.key or b"") + len(sent or b"") > MAX_BYTES:
        expected = Reason.TOO_LARGE.value
    elif not one.draft.is_broker_stamp:
        expected = Reason.UNSTAMPED.value
    else:
        event = said(sent, row["received_at"], DEVICE)
        expected = event.reason
        told = event.columns if expected is None else {}
        yield from (
            f"{name} is {row[name]!r:.100}, and {value!r:.100} to the second reader"
            for name, value in told.items()
            if row[name] != value
        )
    if row["reason"] != expected:
        yield f"is {row['reason']}, and {expected} to the second reader"


def _of_repeats(found: Metered, rows: dict[Place, Row]) -> Iterator[Problem]:
    """What has an identity that was accepted before is a repeat, if its type has a contract.

    It is a duplicate if it says the same in what its contract reads.
    """
    first: dict[tuple[str, str], Row] = {}
    valid = (place for place, row in rows.items() if place[0] == "events" and row["reason"] is None)
    for place in sorted(valid, key=lambda place: int(rows[place]["lsn"])):
        row = rows[place]
        before = row if row["family"] is None else first.setdefault((row["source"], row["id"]), row)
        is_same = _content(before) == _content(row)
        repeated = Disposition.DUPLICATE if is_same else Disposition.CONFLICT
        expected = (Disposition.ACCEPTED, None) if before is row else (repeated, before["lsn"])
        if (row["disposition"], row["first_lsn"]) != expected:
            text = f"is {row['disposition']} of {row['first_lsn']}, not {expected[0]} of {before['lsn']}"
            yield Problem(text, found.sent[place])


def _content(row: Row) -> Any:
    event = deep(lambda: json.loads(one_value(row) or b"", parse_int=str, parse_float=str))
    return [row["type"], row["account"], event["time"], *(row[name] for name in COLUMNS)]


def _of_versions(found: Metered, rows: dict[Place, Row]) -> Iterator[Problem]:
    """joins stores what the second reader reads of each change, if it says anything new."""
    expected: dict[Table, dict[int, Row]] = {table: {} for table in TABLE_OF.values()}
    last: dict[tuple[Any, ...], Row] = {}
    changes = [place for place in rows if place[0] != "events"]
    for place in sorted(changes, key=lambda place: int(rows[place]["lsn"])):
        row, topic, one = rows[place], CatalogTopic(place[0]), found.sent[place]
        try:
            version = change_of(topic, row["key"], one_value(row))
            reason = None
        except Refused:
            version, reason = None, Reason.INVALID_CATALOG_CHANGE.value
        if reason != row["reason"]:
            yield Problem(f"is {row['reason']}, and {reason} to the second reader", one)
        elif version is not None:
            key = (topic, *(version[name] for name in KEY_OF[TABLE_OF[topic]]))
            # When it was said, and by whom, says nothing new.
            said = {name: value for name, value in version.items() if name not in WHEN_AND_WHO}
            if last.get(key) != said:
                expected[TABLE_OF[topic]][row["lsn"]], last[key] = version, said
    for table, versions in expected.items():
        # Nobody captured these.
        held = found.tables[table].drop(SOURCE)
        stored = {row.pop("lsn"): row for row in held.iter_rows(named=True)}
        for lsn in versions.keys() | stored.keys():
            if versions.get(lsn) != stored.get(lsn):
                [place] = [place for place in changes if rows[place]["lsn"] == lsn]
                text = f"is {stored.get(lsn)} in {table}, and {versions.get(lsn)} to the second reader"
                yield Problem(text, found.sent[place])


def _of_usage(found: Metered) -> Iterator[Problem]:
    """Every accepted request and completion is in one outcome, with what it reported; and priced to the last digit."""
    journal, usage = found.tables[Table.JOURNAL], found.tables[Table.USAGE]
    is_decision = pl.col("cause") == UsageCause.DECIDED
    made = [row["lsn"] for row in journal.sort("lsn").iter_rows(named=True) if _decides(row)]
    if (told := usage.filter(is_decision)["request_lsn"].to_list()) != made:
        yield Problem(f"usage says the decisions {told}, the journal {made}")
    usage = usage.filter(~is_decision)
    billable = journal.filter(pl.col("disposition") == Disposition.ACCEPTED, pl.col("family").is_in(list(BILLABLE)))
    named = Counter(
        lsn for pair in usage.select("request_lsn", "completion_lsn").iter_rows() for lsn in set(pair) - {None}
    )
    if named != Counter(billable["lsn"].to_list()):
        wrong = sorted((named.keys() ^ set(billable["lsn"])) | {lsn for lsn, count in named.items() if count > 1})
        yield Problem(f"in no outcome, or in two: {wrong[:5]}")
    prices = {row["lsn"]: row["unit_price"] for row in found.tables[Table.PRICES].iter_rows(named=True)}
    said_by = {row["lsn"]: row for row in billable.iter_rows(named=True)}
    for row in usage.iter_rows(named=True):
        for entry in row["meters"]:
            meter, quantity, version, unit_price, amount = (entry[name] for name in METERED.names)
            exact = None if None in (quantity, version) else EXACT.multiply(unit_price, quantity)
            if amount != exact or unit_price != prices.get(version):
                yield Problem(f"{quantity} {meter} cost {amount}, not {exact} (unit price {unit_price})")
        told = [(entry["meter"], entry["quantity"]) for entry in row["meters"]]
        counted = _counted(row["outcome"], said_by.get(row["completion_lsn"]))
        if sorted(told) != sorted(counted.items()):
            yield Problem(f"usage {row['lsn']}, {row['outcome']}, counts {told}, not {counted}")


def _decides(row: Row) -> bool:
    """Whether a row of the journal is a decision, which nobody can take back."""
    is_change = row["topic"] == CatalogTopic.DECISIONS and row["disposition"] == Disposition.ACCEPTED
    value = one_value(row) if is_change else None
    return value is not None and deep(lambda: json.loads(value)["op"]) != "d"


def _counted(outcome: str, completion: Row | None) -> Row:
    """The quantities of an outcome; None: not reported. What is superseded is nobody's."""
    counted: Row = {Meter.REQUESTS.value: 1} if outcome in (Outcome.MATCHED, Outcome.ABANDONED) else {}
    if completion is None or outcome == Outcome.SUPERSEDED:
        return counted
    reported = {name: completion[name] for name in REPORTED_COLUMNS}
    return counted | {n: value for n, value in reported.items() if value is not None or outcome == Outcome.MATCHED}


def _of_sums(found: Metered) -> Iterator[Problem]:
    """Windows add up to usage, and sessions to the requests of users."""
    usage, journal = found.tables[Table.USAGE], found.tables[Table.JOURNAL]
    with psycopg.connect(found.database) as connection:
        windows: dict[str, Decimal] = dict(connection.execute(WINDOWS).fetchall())
        sessions = connection.execute(SESSIONS).fetchone()
    totals: dict[str, Decimal] = defaultdict(Decimal)
    for entry in (entry for entries in usage["meters"] for entry in entries):
        totals[entry["meter"]] += entry["quantity"] or 0
    for meter in totals.keys() | windows.keys():
        if windows.get(meter, 0) != totals[meter]:
            yield Problem(f"windows hold {windows.get(meter)} {meter}, usage {totals[meter]}")
    requests = journal.filter(
        pl.col("disposition") == Disposition.ACCEPTED,
        pl.col("family").is_in(list(REQUESTS)),
        pl.col("user_id").is_not_null(),
    )
    if sessions != (len(requests),):
        yield Problem(f"sessions hold {sessions} events, the journal {len(requests)}")
