"""The shipped sinks of all four applications over a stand-in Kafka, real tables, a real database and given time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import structlog

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.handover import Place
from jobs.ingestion.identity_index import IdentityIndex
from jobs.ingestion.pipeline import JOB as INGESTION
from jobs.runtime.job import AnyJob
from jobs.streams import EVENTS_TOPIC, CatalogTopic
from metering.instants import rfc3339
from tests.clocks import HandClock
from tests.quarter.catalog_of_truth import DAY
from tests.quarter.truth import BEGIN, DROPPED, GRACE, TIMEOUT, Change, Record
from tests.simulation.applications import JOBS, simulated
from tests.simulation.audits import Examined, audit
from tests.simulation.calls import Fault
from tests.simulation.conftest import dropped
from tests.simulation.simulate import emptied, quick_database
from tests.simulation.world import CONFIGS, ENOUGH_CALLS, MAX_ROUNDS, StandsStillError, World

PARTITIONS = 3
FEW_ROWS = 1_000
DIMENSIONS = ("api_key_id", "region")
HELD_SECONDS = 7 * 86_400
TOKENS = {name: {"unit": "token", "sum": name} for name in ("input_tokens", "output_tokens", "cached_tokens")}
METERS: Mapping[str, Mapping[str, Any]] = {
    "requests": {"unit": "request", "count": "outcomes"},
    **TOKENS,
    "gpu_seconds": {
        "unit": "second",
        "sum": "gpu_seconds",
        "late_policy": "hold",
        "hold": {"seconds": HELD_SECONDS, "expires": "correct"},
    },
}
SETTLED_AFTER = timedelta(seconds=HELD_SECONDS) + DAY
"""By then nothing waits any more for a partner or a decision."""


def _built(records: Any, config: IngestionConfig, _folder: Place | None = None) -> Any:
    """Stands in for ingestion's `build`: the shipped validator without Spark's workers."""
    return records.then(config.validator().validate)


class Stack(World):
    """Drivers that read soundly, with clocks that agree."""

    def __init__(self, folder: Path, database: str, seed: int) -> None:
        super().__init__(folder, database, seed, PARTITIONS)
        self.clock = HandClock(BEGIN)
        self.most_few_rows = FEW_ROWS
        self._is_settling = True
        for name in CONFIGS:
            self.settings[name] |= {"meters": METERS, "dimensions": DIMENSIONS}
        self.settings["joins"] |= {"completion_timeout_seconds": TIMEOUT // timedelta(seconds=1)}
        grace_seconds = GRACE // timedelta(seconds=1)
        self.settings["billing"] |= {"grace_seconds": grace_seconds, "late_policy": {DROPPED: "drop"}}

    def look(self) -> None:
        """What is shown is looked at by whoever runs the quarter."""

    def go_to(self, instant: datetime) -> None:
        """Let time pass until then."""
        self.clock.go((instant - self.clock.now()).total_seconds())

    def tell(self, change: Change) -> None:
        """The catalog changes when the change says."""
        self.go_to(max(change.at, self.clock.now()))
        topic = {"account": CatalogTopic.ACCOUNTS, "price": CatalogTopic.PRICES}[change.what]
        row = {**change.row, "effective_from": rfc3339(change.row["effective_from"])}
        if change.ends is not None:
            row["deleted_at"] = rfc3339(change.ends)
        self.publish(topic, row, deleted=change.ends is not None)

    def receive(self, record: Record, partition: int) -> None:
        """A record with its own stamp."""
        self.kafka.append(EVENTS_TOPIC, partition, record.value, record.at, record.account.encode())

    def turn(self, until: datetime) -> None:
        """Time has come so far, and all applications have done what there is to do. Raises StandsStillError."""
        self.go_to(until)
        self.beat()
        before: object = None
        for _ in range(MAX_ROUNDS):
            ended = [self.run(name, ENOUGH_CALLS, Fault.FREEZE) for name in JOBS]
            if over := [driver for driver in ended if driver.end]:
                raise StandsStillError("; ".join(f"{driver.name}: {driver.end}" for driver in over))
            before, after = self._positions(), before
            if before == after and all(driver.baton.is_idle for driver in ended):
                return
        raise StandsStillError(f"after {MAX_ROUNDS} rounds: {before}")

    def start_anew(self) -> None:
        """End all drivers: the next ones derive what they know."""
        self.end()

    def audited(self, *, appends: bool = True) -> Examined:
        """One audit of all that there is."""
        config = self.configured("joins")
        said = audit(str(self.tables), self.clock.now(), appends=appends, present=config)  # type: ignore[arg-type]
        assert said is not None, "there is no usage yet"
        assert not said.faults, f"the audit found what nobody planted: {said.faults[:3]}"
        return said


@contextmanager
def running_stack(folder: Path, seed: int) -> Iterator[Stack]:
    """A stack whose drivers run the shipped validator and index, as long as its database runs."""
    shipped: dict[str, AnyJob] = {**JOBS, "ingestion": replace(INGESTION, build=_built)}
    configured = structlog.get_config()
    structlog.configure(processors=[dropped])
    with ExitStack() as held:
        held.callback(lambda: structlog.configure(**configured))
        stack = Stack(folder, emptied(held.enter_context(quick_database(folder / "postgres"))), seed)
        held.enter_context(simulated(stack.kafka, stack.clock, stack.most_few_rows, queries_rest=False))
        held.enter_context(patch.dict(JOBS, shipped))
        held.enter_context(patch("jobs.ingestion.sink.IdentityIndex", IdentityIndex))
        held.callback(stack.close)
        yield stack


def tell_zones(database: str, zones: Mapping[str, str]) -> None:
    """What the catalog's own tables say of calendars, for whoever lists months."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.cursor().executemany(
            "INSERT INTO catalog.account_zones (account, holds_from, timezone) VALUES (%s, '-infinity', %s)",
            list(zones.items()),
        )
