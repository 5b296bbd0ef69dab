"""Histories that are kept as text: one step a line, as Python writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.simulation import steps as known
from tests.simulation import topics
from tests.simulation.calls import Fault
from tests.simulation.steps import Step


def keep(to: Path, seed: int, partitions: int, steps: Sequence[Step]) -> None:
    """Write a history to a file."""
    to.write_text("\n".join([f"{seed} {partitions}", *map(repr, steps)]) + "\n")


def read(kept: Path) -> tuple[int, int, list[Step]]:
    """Its seed, which decides how batches are cut, its partitions, and its steps."""
    first, *lines = kept.read_text().splitlines()
    seed, partitions = map(int, first.split())
    names = {**vars(known), **vars(topics), "Fault": Fault}
    return seed, partitions, [eval(line, names) for line in lines]
