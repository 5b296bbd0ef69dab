"""What a history has left behind when all of its drivers have ended, for tests of whoever comes later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import structlog

from tests.simulation.applications import simulated
from tests.simulation.conftest import dropped
from tests.simulation.history import drawn
from tests.simulation.simulate import emptied, quick_database
from tests.simulation.steps import Audit, Step
from tests.simulation.world import World


@contextmanager
def left_by(seed: int, folder: Path, *, is_audited: bool) -> Iterator[World]:
    """The world after the history of a seed, as long as its database runs; `is_audited`: with the audits of it."""
    partitions, steps = drawn(seed)
    with left_by_steps(steps, folder, seed, partitions, is_audited=is_audited) as world:
        yield world


@contextmanager
def left_by_steps(
    steps: Sequence[Step], folder: Path, seed: int = 0, partitions: int = 1, *, is_audited: bool = True
) -> Iterator[World]:
    """The same of these steps."""
    configured = structlog.get_config()
    structlog.configure(processors=[dropped])
    with quick_database(folder / "postgres") as url:
        world = World(folder, emptied(url), seed, partitions)
        with simulated(world.kafka, world.clock, world.most_few_rows, queries_rest=world.queries_rest):
            for step in steps:
                if is_audited or not isinstance(step, Audit):
                    step.do(world)
            world.settle(is_audited=not is_audited)
            world.close()
        yield world
    structlog.configure(**configured)


@contextmanager
def a_copy_of(database: str) -> Iterator[str]:
    """The address of a copy; nobody may be in the original meanwhile."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    server = psycopg.conninfo.make_conninfo(database, dbname="template1")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE planted TEMPLATE "{name}"'.encode())
        try:
            yield psycopg.conninfo.make_conninfo(database, dbname="planted")
        finally:
            connection.execute("DROP DATABASE planted WITH (FORCE)")
