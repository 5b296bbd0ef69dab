"""Two sets of applications, each with its own partitions, tables and database: lanes (docs/decisions/0113).

A history runs three times: once with one set of applications, and once in each of two lanes. A lane gets the events
of its accounts alone, and the whole catalog. Together the lanes must have billed what one set bills.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

from tests.simulation.applications import simulated
from tests.simulation.history import drawn
from tests.simulation.oracle import differences
from tests.simulation.simulate import emptied
from tests.simulation.steps import (
    Audit,
    Backfill,
    Compact,
    CutLog,
    Double,
    Name,
    Pass,
    Publish,
    Rebuild,
    Run,
    Send,
    Step,
    Wake,
)
from tests.simulation.world import World

PARTITIONS = 3
"""Each account of a history has one of its own."""
LANES: tuple[frozenset[int], ...] = (frozenset({0, 2}), frozenset({1}))
"""The partitions of each lane."""
STEPS = (Send, Backfill, Publish, Name, Pass, Run, Double, Wake, Compact, CutLog, Audit, Rebuild)
"""What comes in, and what happens to processes and tables. Left out is what names a row by its place in one lane
(a decision, a redriven dead letter), and what holds from where a driver happens to be when it starts (rules)."""

Bill = dict[tuple[Any, ...], tuple[Decimal, Decimal]]
"""Quantity and amount by account, minute, model, meter and currency."""

_BILLED = """
SELECT account, window_start, model, meter, currency, sum(quantity), sum(coalesce(amount, 0))
FROM usage_windows GROUP BY 1, 2, 3, 4, 5 HAVING sum(quantity) <> 0 OR sum(coalesce(amount, 0)) <> 0
"""
"""What late usage and audits correct stands in the windows already."""


class Lane(World):
    """The world of one lane: of the events that are sent it gets those of its partitions."""

    def __init__(self, folder: Path, database: str, seed: int, owned: frozenset[int]) -> None:
        super().__init__(folder, database, seed, len(owned))
        self._owned = sorted(owned)

    def send(self, partition: int, value: bytes | None, *args: Any, **more: Any) -> None:
        """A record of `events`, keyed by its account; what names none stays in the partition that it was sent to."""
        partition = _account(value) if value and value != b"{" else partition % PARTITIONS
        if partition in self._owned:
            super().send(self._owned.index(partition), value, *args, **more)


def _account(value: bytes) -> int:
    return int(json.loads(value)["subject"].removeprefix("a"))


def history(seed: int) -> list[Step]:
    """The steps of a seed that lanes can have in common, and usage of each lane, so that each has something to bill."""
    first = [Send(0, "usage", account, 1, 0, 7) for account in range(PARTITIONS)]
    return [*first, *(step for step in drawn(seed)[1] if isinstance(step, STEPS))]


def billed(database: str, seed: int, steps: Sequence[Step], owned: frozenset[int]) -> tuple[Bill, list[str]]:
    """What the applications of these partitions bill in the end, and each promise that they broke."""
    with tempfile.TemporaryDirectory(prefix="weir-lane-") as folder:
        world = Lane(Path(folder), emptied(database), seed, owned)
        with simulated(world.kafka, world.clock, world.most_few_rows, queries_rest=world.queries_rest):
            try:
                for step in steps:
                    step.do(world)
                world.settle()
            finally:
                world.close()
        with psycopg.connect(database) as connection:
            bill = {tuple(key): (quantity, amount) for *key, quantity, amount in connection.execute(_BILLED)}
        return bill, list(differences(world))


def lane_differences(database: str, seed: int) -> Iterator[str]:
    """A sentence for each promise that a lane broke, and for each sum that lanes and one set have differently."""
    steps = history(seed)
    one, broken = billed(database, seed, steps, frozenset(range(PARTITIONS)))
    yield from broken
    several: dict[tuple[Any, ...], list[tuple[Decimal, Decimal]]] = defaultdict(list)
    for owned in LANES:
        bill, broken = billed(database, seed, steps, owned)
        yield from broken
        for key, sums in bill.items():
            several[key].append(sums)
    yield from _compared(one, several)


def _compared(one: Bill, several: Mapping[tuple[Any, ...], list[tuple[Decimal, Decimal]]]) -> Iterator[str]:
    for key in one.keys() | several.keys():
        if [one.get(key)] != several.get(key, [None]):
            yield f"{key}: lanes bill {several.get(key)}, one set of applications bills {one.get(key)}"
