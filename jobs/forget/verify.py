"""Looks for a name in every store, and says where it looked: every column of every row and file, also replaced."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import obstore
import polars as pl
import psycopg
from psycopg import sql

from jobs.runtime.delta.object_store import store_of
from jobs.runtime.delta.table import open_table
from jobs.streams import Table
from metering.erasure import mention, written_forms

BLOCK_BYTES = 1 << 24
"""Bytes of a local file in memory."""


@dataclass(frozen=True)
class Searched:
    """One store. `searched`: how many rows or files; `found`: in how many of them the name stands, the first of them in
    `where`. `note`: what becomes of them, or why the store is not searched (then the numbers are null).
    """

    store: str
    searched: int | None
    found: int | None
    where: str | None = None
    note: str | None = None


HASHES = ("identity",)
"""Columns of digests, in which any bytes may be."""


@dataclass(frozen=True)
class Canary:
    """What is looked for: a user of an account. Rows of other accounts may have another user of the same name."""

    account: str
    user_id: str

    def in_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those rows of the account, or of none, in which the name stands in any text."""
        named = mention(self.user_id)
        texts = [
            pl.col(name).str.contains(named) | (pl.col(name) == self.user_id)
            for name, kind in rows.schema.items()
            if kind == pl.String
        ]
        forms = [form.encode() for form in written_forms(self.user_id)]
        for name in (name for name, kind in rows.schema.items() if kind == pl.Binary and name not in HASHES):
            may_have_it = pl.any_horizontal(pl.col(name).bin.contains(form).fill_null(value=False) for form in forms)
            # What need not be UTF-8 is no text to Polars, and few rows come so far.
            candidates = rows.select(pl.col(name), is_here=may_have_it).rows()
            found = [here and self.in_bytes(value) for value, here in candidates]
            texts.append(pl.lit(pl.Series(found, dtype=pl.Boolean)))
        if not texts:
            return rows.clear()
        is_here = pl.any_horizontal(found.fill_null(value=False) for found in texts)
        is_of_account = pl.lit(value=True)
        if "account" in rows.columns:
            is_of_account = (pl.col("account") == self.account).fill_null(value=True)
        return rows.filter(is_here & is_of_account)

    def in_bytes(self, content: bytes) -> bool:
        """Whether it stands in a file that is no table."""
        pattern = mention(self.user_id).encode()
        return re.search(pattern, content) is not None


def search(
    tables: str, connection: psycopg.Connection[Any], canary: Canary, folder: Path | None = None
) -> Iterator[Searched]:
    """Every store in turn. `folder`: that of a stack on this machine, with its logs and checkpoints."""
    yield from _delta(tables, canary)
    yield from _database(connection, canary)
    if folder is not None:
        yield from _local(folder, canary, tables)
    for store, note in NOT_SEARCHED.items():
        yield Searched(store, None, None, note=note)


NOT_SEARCHED = {
    "Kafka": "`events` deletes its records by retention.ms; `corrections` has dimensions as they were published",
    "sketches of views": "hashes of users, and the most frequent ones of `top`: removed with their panes (keep_days)",
    "files of Postgres": "removed rows until the next vacuum, and its log until it is recycled",
    "backups, exports, logs elsewhere": "outside Weir, with a retention of their own",
}
"""Stores that hold the name for a while, or may; nothing here looks into them."""


_UNTIL = {
    "replaced files": "deleted by `weir compact` a week after they were replaced",
    "rows between tasks": "deleted by joins with its next batches, by ingestion at its start, or by `weir compact`",
}


def _delta(tables: str, canary: Canary) -> Iterator[Searched]:
    store, live = store_of(tables, os.environ), _live(tables)
    counts: dict[str, list[int]] = {}
    first: dict[str, str] = {}
    for page in obstore.list(store):
        for meta in page:
            path = str(meta["path"])
            kind = _kind(path, live)
            content = bytes(obstore.get(store, path).bytes())
            searched, found = _in_file(path, content, canary)
            total = counts.setdefault(kind, [0, 0])
            total[0] += searched
            total[1] += found
            if found:
                first.setdefault(kind, path)
    for kind, (searched, found) in sorted(counts.items()):
        note = next((note for end, note in _UNTIL.items() if kind.endswith(end)), None)
        yield Searched(kind, searched, found, first.get(kind), note)


def _live(tables: str) -> set[str]:
    found: set[str] = set()
    for table in Table:
        if (opened := open_table(tables, table)) is not None:
            found |= {f"{table}/{path}" for path in pl.DataFrame(opened.get_add_actions())["path"]}
    return found


def _kind(path: str, live: Iterable[str]) -> str:
    table, _, rest = path.partition("/")
    if table not in set(Table):
        return f"files of {table}"
    if rest.startswith("_delta_log/"):
        return f"log of {table}"
    if path.endswith(".arrow"):
        return f"{table}, rows between tasks"
    return f"{table}, live rows" if path in live else f"{table}, rows of replaced files"


def _in_file(path: str, content: bytes, canary: Canary) -> tuple[int, int]:
    """How many rows (of a table) or files were searched, and in how many it stands."""
    if path.endswith(".arrow"):
        # Compressed, and its texts follow each other without anything between them.
        rows = pl.read_ipc(BytesIO(content))
        return len(rows), len(canary.in_rows(rows))
    if not path.endswith(".parquet") or "/_delta_log/" in path:
        return 1, int(_in_any(path, content, canary))
    rows = pl.read_parquet(BytesIO(content), hive_partitioning=False)
    return len(rows), len(canary.in_rows(rows))


def _in_any(path: str, content: bytes, canary: Canary) -> bool:
    if not path.endswith(".parquet"):
        return canary.in_bytes(content)
    checkpoint = pl.read_parquet(BytesIO(content), hive_partitioning=False)
    return canary.in_bytes(str(checkpoint.to_dicts()).encode())


_TABLES = """
SELECT n.nspname, c.relname, EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'account' AND NOT attisdropped
), EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = c.oid AND c.relname = 'pattern_outcomes' AND attname = 'outcomes' AND atttypid = 'bytea'::regtype
)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm') AND NOT c.relispartition
  AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
ORDER BY 1, 2
"""
_COUNT = sql.SQL("""
SELECT count(*), count(*) FILTER (WHERE text ~ %(named)s OR strpos(text, %(hexed)s) > 0)
FROM {table} AS t CROSS JOIN LATERAL (SELECT to_jsonb(t)::text AS text) AS written WHERE {of_account}
""")
"""As JSON, texts are in quotes, and binary columns in hexadecimal digits."""
MIN_HEXED_CHARACTERS = 6
_OUTCOMES = sql.SQL("SELECT outcomes FROM {}")
"""Each is an Arrow file, in which texts follow each other without anything between them."""
MAX_READ = 10
NOTES = {
    "activity_log": "its chain cannot be changed: somebody wrote the name into a reason or the catalog",
    "decisions": "free text that people wrote; the journal has it, too",
    "stragglers": "free text that people wrote",
    "analytics_panes": "removed when they expire (keep_days)",
    "pattern_matches": "removed when they expire (keep_days)",
    "pattern_outcomes": "removed when they expire (revise_days)",
    "limits": "somebody wrote the name into the catalog: remove the row, and the entry of its file",
    "limited_dimensions": "the name that limits of the catalog have: billing removes it once they are gone",
    "webhook_events": "of a limit that names the person: removed by `weir retain`, 30 or 90 days after",
    "watches": "somebody wrote the name into a condition: its row stays also after `weir watch remove`",
}
"""Of tables that `weir forget` does not change."""


def _database(connection: psycopg.Connection[Any], canary: Canary) -> Iterator[Searched]:
    named = mention(canary.user_id)
    # Digits of a short name are in every other digest.
    hexed = canary.user_id.encode().hex() if len(canary.user_id) >= MIN_HEXED_CHARACTERS else None
    for schema, table, has_account, has_blocks in connection.execute(_TABLES).fetchall():
        of_account = sql.SQL("account IS NULL OR account::text IN ('', %(account)s)" if has_account else "true")
        statement = _COUNT.format(table=sql.Identifier(schema, table), of_account=of_account)
        values = {"named": named, "hexed": hexed, "account": canary.account}
        row = _in_blocks(connection, schema, canary) if has_blocks else connection.execute(statement, values).fetchone()
        assert row is not None
        note = NOTES.get(table) if row[1] else None
        yield Searched(f"Postgres {schema}.{table}", row[0], row[1], f"{schema}.{table}" if row[1] else None, note)


def _in_blocks(connection: psycopg.Connection[Any], schema: str, canary: Canary) -> tuple[int, int]:
    """How many outcomes were searched, and in how many it stands: one value has those of all accounts."""
    searched = found = 0
    with connection.transaction(), connection.cursor("blocks", binary=True) as cursor:
        cursor.itersize = MAX_READ
        for (content,) in cursor.execute(_OUTCOMES.format(sql.Identifier(schema, "pattern_outcomes"))):
            rows = pl.read_ipc(BytesIO(content))
            searched += len(rows)
            found += len(canary.in_rows(rows))
    return searched, found


def _local(folder: Path, canary: Canary, tables: str) -> Iterator[Searched]:
    """Every file of a stack's folder but the tables, which were searched, and what the two servers keep."""
    parts: dict[str, list[int]] = {}
    first: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        part = path.relative_to(folder).parts[0] if path != folder else ""
        if part in SERVERS or not path.is_file() or str(path).startswith(f"{tables.rstrip('/')}/"):
            continue
        found = int(_in_local(path, canary))
        total = parts.setdefault(part, [0, 0])
        total[0] += 1
        total[1] += found
        if found:
            first.setdefault(part, str(path.relative_to(folder)))
    for part, (searched, found) in sorted(parts.items()):
        yield Searched(f"local files, {part}", searched, found, first.get(part))


SERVERS = ("kafka", "postgres")
"""Folders of the broker and the database of a stack on this machine."""


def _in_local(path: Path, canary: Canary) -> bool:
    overlap = b""
    with path.open("rb") as file:
        while part := file.read(BLOCK_BYTES):
            if canary.in_bytes(overlap + part):
                return True
            overlap = part[-4_096:]
    return False
