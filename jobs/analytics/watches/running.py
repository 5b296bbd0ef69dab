"""The watches that a batch runs past: read from the database before it, and compiled once where it is evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import polars as pl
import psycopg

from jobs.analytics.watches.attributes import READ, account_versions, attributes_in
from jobs.analytics.watches.index import WatchIndex
from jobs.analytics.watches.terms import Watch
from jobs.runtime.job import Lookup
from jobs.streams import Table
from metering.contracts.model import Kind
from metering.watches.parser import parse

MAX_HITS_AN_HOUR = 100
Stored = tuple[int, str, tuple[tuple[str, str], ...]]
"""A watch as stored: its id, its condition, and the kinds of the columns that it names when it was added."""

# A watch never changes and ids only rise, so other watches have another count or another highest id.
_FINGERPRINT = "SELECT count(*), coalesce(max(watch_id), 0) FROM watches WHERE removed_at IS NULL"
_RUNNING = "SELECT watch_id, condition, columns FROM watches WHERE removed_at IS NULL ORDER BY watch_id"


@dataclass(frozen=True)
class RunningWatches:
    """The watches that are not removed, and every version of accounts where one of them names any."""

    fingerprint: tuple[int, int] = (0, 0)
    stored: tuple[Stored, ...] = ()
    accounts: pl.DataFrame | None = field(default=None, compare=False)
    max_hits: int = MAX_HITS_AN_HOUR
    """Of a watch and an hour, that are rows. The others are counted."""

    @property
    def ids(self) -> list[int]:
        """Of all of them."""
        return [watch_id for watch_id, _, _ in self.stored]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """What they read of outcomes and accounts, by name."""
        return tuple(sorted({name for _, _, kinds in self.stored for name, _ in kinds}))

    @property
    def of_accounts(self) -> tuple[str, ...]:
        """What they read of accounts."""
        return attributes_in(self.columns)

    @property
    def of_outcomes(self) -> tuple[str, ...]:
        """What they read of outcomes, and the account, which each hit has."""
        return tuple(sorted({*self.columns, "account"} - {*self.of_accounts}))

    @property
    def index(self) -> WatchIndex:
        """All of them, compiled."""
        return index_of(self.stored)


def watches_of(stored: tuple[Stored, ...]) -> list[Watch]:
    """The watches with their trees: a condition is typed by what its columns were when it was added."""
    return [
        Watch(watch_id, parse(condition, {name: Kind(kind) for name, kind in kinds}))
        for watch_id, condition, kinds in stored
    ]


@lru_cache(maxsize=2)
def index_of(stored: tuple[Stored, ...]) -> WatchIndex:
    """The same compiled; a process does it once for many batches."""
    return WatchIndex(watches_of(stored))


def running_watches(connection: psycopg.Connection[Any], lookup: Lookup, before: RunningWatches) -> RunningWatches:
    """What runs now; `before`: what was read last, of which only what changed is read again."""
    row = connection.execute(_FINGERPRINT).fetchone()
    found = before
    if row is not None and tuple(row) != before.fingerprint:
        rows = connection.execute(_RUNNING).fetchall()
        stored = tuple((watch_id, condition, kinds_of(columns)) for watch_id, condition, columns in rows)
        fingerprint = len(stored), max((watch_id for watch_id, _, _ in stored), default=0)
        found = RunningWatches(fingerprint, stored, max_hits=before.max_hits)
    if not found.of_accounts:
        return found
    accounts = lookup.whole(Table.ACCOUNTS, READ)
    versions = None if accounts is None else account_versions(accounts, found.of_accounts)
    return replace(found, accounts=versions)


def kinds_of(columns: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The kinds of columns as a value that has a hash."""
    return tuple(sorted(columns.items()))
