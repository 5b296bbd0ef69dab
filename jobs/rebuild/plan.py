"""The pieces that are folded at once while tables are rebuilt, for each application."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import psycopg
import pyarrow as pa

from jobs.runtime.config import JobConfig
from jobs.runtime.job import PostgresJob


@dataclass(frozen=True)
class Piece:
    """Rows of a table up to `next_lsn`, reduced to what the fold takes; F with the last of them (None: unknown)."""

    staged: pa.Table
    next_lsn: int
    frontier: datetime | None = None


@dataclass(frozen=True)
class Part:
    """What held from lsn `first` on: a configuration, and what else the pieces are made with."""

    first: int
    config: Any
    effective: Any = None


class Pieces(Protocol):
    """Rows by lsn of a part of the table → pieces, in their order."""

    def __call__(self, rows: pa.Table, part: Part, /, *, ends_table: bool) -> Iterator[Piece]:
        """Cut and reduce them."""


@dataclass(frozen=True)
class Plan:
    """How the tables of one application are made again.

    `emptied`: its tables, all of their rows or those of the job. `parts`: what held, by the history in the database;
    without any, the configuration from 1 on. `pieces` cuts rows as it must. `ending`: what follows when all is folded
    up to a position, with what `keeping` has read before anything went.
    """

    job: PostgresJob[Any]
    emptied: Sequence[str]
    columns: Sequence[str]
    parts: Callable[[psycopg.Cursor[Any], Any], Sequence[Part]]
    pieces: Pieces
    keeping: Sequence[str]
    ending: Callable[[psycopg.Cursor[Any], JobConfig, int, int], None]
    counted: Mapping[str, str]
    """What is reported about the result: a name, and the statement that counts it."""
