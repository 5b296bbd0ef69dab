"""Running a history, and making one that fails as short as it can be."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from jobs.runtime.postgres.schema import migrate
from laptop.database import embedded_database
from tests.job_roles import make_job_roles
from tests.quick_server import make_quick
from tests.simulation.applications import simulated
from tests.simulation.history import drawn
from tests.simulation.oracle import differences
from tests.simulation.steps import Step
from tests.simulation.world import World

MAX_SHOWN = 5


@dataclass
class Outcome:
    """How a history ended. `broken`: promises that did not hold; `came`: what came of each step."""

    seed: int
    partitions: int
    steps: Sequence[Step]
    came: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        """The history, for whoever looks for the fault."""
        lines = [f"seed {self.seed}, {self.partitions} partitions, {len(self.steps)} steps"]
        lines += [f"  {step!r}  → {came}" for step, came in zip(self.steps, self.came, strict=False)]
        lines += [f"  BROKEN {sentence}" for sentence in self.broken[:MAX_SHOWN]]
        if len(self.broken) > MAX_SHOWN:
            lines.append(f"  and {len(self.broken) - MAX_SHOWN} more")
        return "\n".join([*lines, f"run it again: python -m tests.simulation --seed {self.seed}"])


def simulate(database: str, seed: int, partitions: int, steps: Sequence[Step]) -> Outcome:
    """Run a history in `database`, whose rows go, and look at its end."""
    outcome, begun = Outcome(seed, partitions, steps), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="weir-history-") as folder:
        world = World(Path(folder), emptied(database), seed, partitions)
        with simulated(world.kafka, world.clock, world.most_few_rows, queries_rest=world.queries_rest):
            try:
                for step in steps:
                    outcome.came.append(step.do(world))
                world.settle()
            except AssertionError as error:
                outcome.broken.append(str(error))
            except Exception:  # noqa: BLE001 -- whatever it is, the history is what is looked for
                outcome.broken.append(traceback.format_exc())
            finally:
                world.close()
        if not outcome.broken:
            outcome.broken += differences(world)
    outcome.seconds = time.perf_counter() - begun
    return outcome


def simulate_seed(database: str, seed: int) -> Outcome:
    """The history of a seed."""
    return simulate(database, seed, *drawn(seed))


def shrunk(database: str, failed: Outcome, seconds: float = 300.0) -> Outcome:
    """The shortest history found in so many seconds that still breaks a promise: ever smaller parts are left out."""
    ends, size = time.monotonic() + seconds, max(1, len(failed.steps) // 2)
    while True:
        begin, is_shorter = 0, False
        while begin < len(failed.steps):
            if time.monotonic() > ends:
                return failed
            fewer = [*failed.steps[:begin], *failed.steps[begin + size :]]
            tried = simulate(database, failed.seed, failed.partitions, fewer)
            if tried.broken:
                failed, is_shorter = tried, True
            else:
                begin += size
        if size == 1 and not is_shorter:
            return failed
        size = max(1, size // 2)


def emptied(database: str) -> str:
    """The address of a migrated database without anybody in it, and without any row but of what people did."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        named = connection.execute(
            "SELECT string_agg(format('DELETE FROM %I.%I', schemaname, tablename), '; ') FROM pg_tables"
            " WHERE schemaname IN ('weir', 'catalog') AND tablename NOT IN ('alembic_version', 'activity_log')"
        ).fetchone()
        assert named is not None
        connection.execute(named[0])
    return database


@contextmanager
def quick_database(folder: Path) -> Iterator[str]:
    """The address of a migrated database on a server that writes nothing through: nobody takes its power away."""
    with embedded_database(folder) as url:
        make_quick(url)
        make_job_roles(url)
        migrate(url)
        yield url
