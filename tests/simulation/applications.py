"""The shipped applications as drivers of the simulator: as `jobs.runtime.run` has them, without Java and waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import deltalake
import obstore

from jobs.billing.pipeline import JOB as BILLING
from jobs.ingestion.identity_index import AcceptedIdentities, IdentityIndex
from jobs.ingestion.pipeline import JOB as INGESTION
from jobs.ingestion.repeats import Horizons
from jobs.joins.pipeline import JOB as JOINS
from jobs.runtime import run
from jobs.runtime.config import JobConfig
from jobs.runtime.delta import table
from jobs.runtime.delta.driver_rows import TableLimits
from jobs.runtime.environment import Environment
from jobs.runtime.errors import Fenced, Refused
from jobs.runtime.job import AnyJob, Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.meters_table import declare
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.session import Session
from jobs.runtime.waiting import Waiting, until_done
from jobs.sessionization.pipeline import JOB as SESSIONIZATION
from metering.instants import Clock
from tests.simulation import rules
from tests.simulation.calls import COMMIT, Baton, Crashed, Fault, Unanswered, current, idle, outside
from tests.simulation.frames import Spark, observed
from tests.simulation.kafka import AbsentOffsets, Admin, Consumer, FewRecords, Heartbeat, Kafka, Look

JOBS: dict[str, AnyJob] = {
    "ingestion": replace(INGESTION, build=rules.build, validator=rules.validator_of),
    "sessionization": replace(SESSIONIZATION, build=rules.mini_sessions),
    "joins": replace(JOINS, build=rules.keep),
    # Without the thread that publishes: what it would send stays in the outbox.
    "billing": replace(BILLING, beside=None),
}


class _NeverAsked:
    """Nobody asks a driver to stop; where it would wait, its turn is over."""

    def is_set(self) -> bool:
        return False

    def wait(self, _seconds: float) -> bool:
        idle()
        return False


class _Silent:
    """Stands in for the reporter."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Application:
    """One driver. `end`: why it has ended; empty while it lives."""

    def __init__(self, name: str, config: JobConfig, where: Environment, spark: Spark, clock: Clock) -> None:
        self.name, self.end = name, ""
        self.config, self._where, self._clock = config, where, clock
        self._spark = spark
        self.baton = Baton(self._program, name)

    def _program(self) -> None:
        try:
            self._live()
        except (Refused, Fenced) as error:
            self.end = f"{type(error).__name__}: {error}"
        except Crashed:
            self.end = "crashed"
            raise
        except Exception as error:  # noqa: BLE001 -- as a process that ends with a traceback
            self.end = f"crashed by {error!r}"

    def _live(self) -> None:
        job, stopping, waiting = JOBS[self.name], _NeverAsked(), Waiting(self.name, self._clock)
        ownership = until_done(lambda: self._own(job), waiting, stopping)  # type: ignore[arg-type]
        assert ownership is not None
        context = Context(self.config, self._where, self._spark, ownership, self._clock, Denials())  # type: ignore[arg-type]
        folders = iter(lambda: Path("scratch"), None)
        until_done(lambda: run._drive(job, context, _Silent(), stopping, folders), waiting, stopping)  # type: ignore[arg-type]

    def _own(self, job: AnyJob) -> Ownership:
        epochs = [table.committed_epoch(self._where.tables, each, job.name) for each in job.tables]
        config = self.config.model_dump(mode="json")
        ownership = Ownership.take(job.name, self._where.postgres_url, config, 1 + max(epochs, default=0))
        declare(ownership.connection, self.config.declared)
        return ownership

    def go(self, calls: int, fault: Fault, at: str = "") -> None:
        """Let it make so many outside calls; then `fault`, at the first call of the kind `at` where one is named."""
        self.baton.run(calls, fault, at)

    def crash(self) -> None:
        """Its process is gone, and with it its connections."""
        self.baton.crash()


def _of_store(perform: Callable[..., Any], kind: str = "store") -> Callable[..., Any]:
    def performed(*args: Any, **more: Any) -> Any:
        return outside(kind, lambda: perform(*args, **more))

    return performed


def _answered(performed: Callable[..., Any]) -> Callable[..., Any]:
    """`Session.wait` with what may happen to a statement on its way there or back."""

    def wait(session: Session, gen: Any, *args: Any, **more: Any) -> Any:
        try:
            return outside("database", lambda: performed(session, gen, *args, **more))
        except (Crashed, Unanswered):
            session.pgconn.finish()
            raise
        finally:
            gen.close()

    return wait


def _connected(to: Callable[..., Session]) -> Callable[..., Session]:
    def connect(*args: Any, **more: Any) -> Session:
        session = outside("database", lambda: to(*args, **more))
        if (baton := current()) is not None:
            baton.sessions.append(session)
        return session

    return connect


def _small_index(journal: AcceptedIdentities, horizons: Horizons, memory_bytes: int) -> IdentityIndex:
    """Four rows in a segment, so that these short journals have old ones, too."""
    return IdentityIndex(journal, horizons, memory_bytes, segment_lsns=4)


@contextmanager
def commits_of_delta_rs() -> Iterator[None]:
    """Within it delta-rs makes every commit of drivers, as where the rows of one are of two log dates."""
    writer = partial(table.DeltaWriter, own_commits=False)
    committed = _of_store(deltalake.DeltaTable.create_write_transaction, COMMIT)
    with (
        patch("jobs.ingestion.sink.DeltaWriter", writer),
        patch("jobs.joins.sink.DeltaWriter", writer),
        patch("jobs.joins.catalog.DeltaWriter", writer),
        patch("deltalake.DeltaTable.create_write_transaction", committed),
    ):
        yield


@contextmanager
def simulated(kafka: Kafka, clock: Clock, most_few_rows: int, *, queries_rest: bool) -> Iterator[None]:
    """Within it applications reach this Kafka, and pass by `calls` on their way to a store or a database."""
    replaced: dict[str, Any] = {
        "jobs.ingestion.sink.AdminClient": lambda _: Admin(kafka),
        "jobs.runtime.kafka.source.AdminClient": lambda _: Admin(kafka),
        "jobs.runtime.kafka.topic.Consumer": lambda _: Consumer(kafka),
        "jobs.ingestion.sink.AbsentOffsets": lambda _access, _admin, topic: AbsentOffsets(kafka, topic),
        "jobs.ingestion.sink.IdentityIndex": _small_index,
        "jobs.ingestion.sink.RawScan": lambda _access, _admin, topic: Look(kafka, topic.name),
        "jobs.runtime.kafka.source.RawScan": lambda _access, _admin, topic: Look(kafka, topic.name),
        "jobs.ingestion.sink.Heartbeat": lambda _access, topics, *_, **__: Heartbeat(kafka, topics, clock.now()),
        "jobs.runtime.new_rows.observed": observed,
        "jobs.runtime.run.java_runs": lambda _: True,
        "jobs.runtime.kafka.quarantine.quarantine_start.java_runs": lambda _: True,
        "jobs.runtime.delta.own_commit.obstore": SimpleNamespace(put=_of_store(obstore.put, COMMIT)),
        "jobs.runtime.delta.table.write_deltalake": _of_store(deltalake.write_deltalake, COMMIT),
        "deltalake.DeltaTable.__init__": _of_store(deltalake.DeltaTable.__init__),
        "deltalake.DeltaTable.update_incremental": _of_store(deltalake.DeltaTable.update_incremental),
        "obstore.put": _of_store(obstore.put),
        "jobs.runtime.kafka.source.DriverRecords": lambda *_: FewRecords(kafka, most_few_rows),
        "jobs.runtime.delta.source.TableSource._most": lambda *_: TableLimits(rows=most_few_rows),
        "jobs.runtime.delta.source.TableSource._may_idle": lambda _: queries_rest,
        # What a table has that is too much a restart reads first; what a topic has only Spark.
        "jobs.runtime.kafka.source.TopicSource._may_idle": lambda source: queries_rest and source._many_at is None,
        # Nobody captures here, so of nothing is told that it should have been.
        "jobs.joins.unpropagated_deletions.LOOK_SECONDS": float("inf"),
        "obstore.get": _of_store(obstore.get),
        "obstore.head": _of_store(obstore.head),
        "obstore.delete": _of_store(obstore.delete),
        "jobs.runtime.postgres.session.Session.wait": _answered(Session.wait),
        "jobs.runtime.postgres.session.Session.to": _connected(Session.to),
    }
    with ExitStack() as held:
        for name, stand_in in replaced.items():
            held.enter_context(patch(name, stand_in))
        yield
