"""Outcomes of keys, and which matches of patterns are final, by taking the definition literally."""

from __future__ import annotations

import operator
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
from psycopg.rows import dict_row

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.fold import fold as fold_batch
from jobs.analytics.patterns.blocks import AT, INSTANT, LSN, columns_of, staged_blocks
from jobs.analytics.patterns.decide import READ_BATCH, ReadBatch
from jobs.analytics.patterns.declared import begin_again
from jobs.analytics.pipeline import JOB, STAGED
from metering.instants import EPOCH
from metering.patterns.expressions import Both, Column, Comparison, Condition, Either, Gap, In, IsNull, Literal, Not
from metering.patterns.pattern import AfterMatch, Pattern
from tests.pipelines.folding import fold_table
from tests.rules.test_pattern_matching import words_fitting

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Happened:
    """An outcome: its lsn, when it occurred, and its columns; account and key are among them."""

    lsn: int
    at: datetime
    columns: tuple[tuple[str, str | int | bool | None], ...]

    def __getitem__(self, column: str) -> Any:
        found = dict(self.columns).get(column)
        return Decimal(found) if isinstance(found, int) and not isinstance(found, bool) else found


def truth(condition: Condition, row: Happened, before: Happened | None) -> bool | None:
    """What a condition is of a row: None is unknown."""
    match condition:
        case Comparison(sign, left, right, _):
            sides = [_operand(side, row, before) for side in (left, right)]
            return None if None in sides else _OPERATORS[sign](*sides)
        case In(column, values):
            found = _operand(column, row, before)
            return None if found is None else found in [value.value for value in values]
        case IsNull(of):
            return _operand(of, row, before) is None
        case Not(of):
            found = truth(of, row, before)
            return None if found is None else not found
        case Both(left, right):
            both = [truth(left, row, before), truth(right, row, before)]
            return False if False in both else None if None in both else True
        case Either(left, right):
            either = [truth(left, row, before), truth(right, row, before)]
            return True if True in either else None if None in either else False


def _operand(operand: Column | Gap | Literal, row: Happened, before: Happened | None) -> Any:
    match operand:
        case Literal(_, value):
            return value
        case Gap():
            return None if before is None else (row.at - before.at).total_seconds()
        case Column(name, is_previous):
            of = before if is_previous else row
            return None if of is None else of[name]


def sequences(config: AnalyticsConfig) -> list[Pattern]:
    """The declared patterns that are no bursts."""
    return [pattern for pattern in config.declared_patterns if isinstance(pattern, Pattern)]


def expected(pattern: Pattern, rows: Sequence[Happened], final_until: datetime) -> list[dict[str, Any]]:
    """The matches that are final, by key and start: keys, lsns, outcomes, and the variables that they stand for."""
    by_key = defaultdict[tuple[Any, ...], list[Happened]](list)
    for row in sorted(rows, key=lambda row: (row.at, row.lsn)):
        by_key[tuple(row[key] for key in pattern.partition_by)].append(row)
    found = []
    for key, of in by_key.items():
        fits = []
        for number, row in enumerate(of):
            last = of[number - 1] if number and row.at - of[number - 1].at <= pattern.within else None
            conditions = {name: pattern.conditions.get(name) for name in pattern.variables}
            fits.append(
                frozenset(name for name, one in conditions.items() if one is None or truth(one, row, last) is True)
            )
        times = [int((row.at - NOON) / timedelta(microseconds=1)) for row in of]
        is_next = pattern.after_match is AfterMatch.NEXT_ROW
        for first, word in words_fitting(pattern.pattern, fits, times, pattern.within, to_next_row=is_next):
            some = of[first : first + len(word)]
            if some[0].at + pattern.within <= final_until:
                found.append({"keys": dict(zip(pattern.partition_by, key, strict=True)), "rows": some, "word": word})
    return found


def staged(config: AnalyticsConfig, added: Sequence[Happened], minutes: Sequence[datetime] = ()) -> pa.Table:
    """What `build` makes of these outcomes; `minutes` are made again, and all their outcomes are among them."""
    patterns = config.declared_patterns
    rows = {
        AT: [one.at for one in added],
        LSN: [one.lsn for one in added],
        **{name: [_stored(name, one) for one in added] for name in columns_of(patterns)},
    }
    outcomes = pl.DataFrame(rows, {AT: INSTANT, LSN: pl.Int64, **columns_of(patterns)})
    blocks = staged_blocks(outcomes, STAGED)
    rebuilt = {"view": "", "version": "", "account": None, "keys": "[]", "measures": "{}"}
    again = [{**rebuilt, "window_start": minute} for minute in minutes]
    return pa.concat_tables([blocks, pa.Table.from_pylist(again, schema=STAGED)])


def _stored(name: str, one: Happened) -> str | Decimal | None:
    value = dict(one.columns).get(name.removeprefix("#"))
    if value is None:
        return None
    if name.startswith("#"):
        return Decimal(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def fold(
    connection: psycopg.Connection[Any],
    config: AnalyticsConfig,
    added: Sequence[Happened] = (),
    minutes: Sequence[datetime] = (),
    *,
    frontier: datetime | None = None,
    read_batch: ReadBatch = READ_BATCH,
) -> None:
    """A batch of analytics with these outcomes."""
    job = replace(JOB, fold=partial(fold_batch, read_batch=read_batch))
    fold_table(connection, job, staged(config, added, minutes), config, frontier=frontier)
    connection.commit()


def standing(connection: psycopg.Connection[Any], pattern: str) -> list[dict[str, Any]]:
    """The matches that stand, in the order of key and start."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            """SELECT * FROM (SELECT DISTINCT ON (pattern_id, match_id) m.* FROM pattern_matches AS m
               JOIN analytics_patterns USING (pattern_id) WHERE pattern = %s
               ORDER BY pattern_id, match_id, m.version DESC) AS last
               WHERE NOT is_retracted ORDER BY keys::text, started_at, first_lsn""",
            [pattern],
        ).fetchall()


@dataclass(frozen=True)
class Batch:
    """Outcomes that are new and, of `minutes` that are made again, all that is left; all that is known then, and F."""

    added: Sequence[Happened]
    minutes: Sequence[datetime]
    known: Sequence[Happened]
    frontier: datetime | None


def random_batches(
    chance: random.Random, outcomes: Iterable[Happened], *, max_new: int, max_gone: int, max_frontier: int
) -> Iterator[Batch]:
    """The outcomes as they are or about by time, in batches; in some of these F moves, and some known ones are gone.

    F is at most `max_frontier` seconds after NOON.
    """
    waiting = [*outcomes]
    if chance.random() < 0.5:
        waiting.sort(key=lambda one: one.at + timedelta(seconds=chance.choice([0, 0, 0, 500])), reverse=True)
    known: list[Happened] = []
    frontier: datetime | None = None
    while waiting:
        some = [waiting.pop() for _ in range(min(len(waiting), chance.randint(1, max_new)))]
        if chance.random() < 0.6:
            moved = NOON + timedelta(seconds=chance.randint(0, max_frontier))
            frontier = moved if frontier is None else max(moved, frontier)
        minutes: list[datetime] = []
        if known and chance.random() < 0.4:
            # Some are taken back: what is left of their minutes comes again, whole.
            gone = chance.sample(known, min(len(known), max_gone))
            minutes = sorted({minute_of(one) for one in gone})
            known = [one for one in known if one not in gone]
        known = known + some
        again = [one for one in known if one not in some and minute_of(one) in minutes]
        yield Batch([*some, *again], minutes, known, frontier)


def minute_of(one: Happened) -> datetime:
    """The start of the minute in which it occurred."""
    return one.at - (one.at - EPOCH) % MINUTE


def rebuild(
    connection: psycopg.Connection[Any],
    config: AnalyticsConfig,
    parts: Iterable[Sequence[Happened]],
    frontier: datetime | None,
    read_batch: ReadBatch,
) -> None:
    """All outcomes again, as `weir rebuild analytics` does it: during a replay the frontier is not known."""
    with connection.cursor() as cursor:
        begin_again(cursor)
    for part in parts:
        fold(connection, config, part, read_batch=read_batch)
    fold(connection, config, frontier=frontier, read_batch=read_batch)
