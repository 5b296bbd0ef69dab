"""All that a history acts on: a broker, a database, tables, a clock, and the drivers of the four applications."""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from jobs.billing.config import BillingConfig
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.retention.days import Retention
from jobs.retention.rows import retain_rows
from jobs.retention.tables import retain_days
from jobs.runtime.config import JobConfig
from jobs.runtime.delta.table import LSN, DeltaWriter, open_table
from jobs.runtime.environment import Environment
from jobs.runtime.kafka.access import KafkaAccess
from jobs.sessionization.config import SessionizationConfig
from jobs.streams import EVENTS_TOPIC, SCHEMAS, Table
from metering.instants import rfc3339
from metering.vocabulary import EventType
from tests.clocks import HandClock
from tests.simulation.applications import JOBS, Application
from tests.simulation.audits import audit
from tests.simulation.calls import Fault
from tests.simulation.declared import BACKFILL, CONTRACTS
from tests.simulation.frames import Spark
from tests.simulation.kafka import Kafka, Record, beat

START = datetime(2025, 1, 6, 12, tzinfo=UTC)
"""Long ago, so that no step reaches the present of the database's clock."""


CONFIGS: Mapping[str, type[JobConfig]] = {
    "ingestion": IngestionConfig,
    "sessionization": SessionizationConfig,
    "joins": JoinsConfig,
    "billing": BillingConfig,
}
ENOUGH_CALLS = 100_000
MAX_PARTITIONS = 4
"""Of a topic."""
MAX_ROUNDS = 12
SKEWS_S = (0, 0, 0, 2, -90, 600, -18_000)
"""How far the clock of a driver's machine is ahead."""


class Skewed:
    """The clock of a machine that is ahead of the others."""

    def __init__(self, clock: HandClock, ahead: timedelta) -> None:
        self._clock, self._ahead = clock, ahead

    def now(self) -> datetime:
        return self._clock.now() + self._ahead

    def monotonic(self) -> float:
        return self._clock.monotonic()


class StandsStillError(AssertionError):
    """An application does not go on though nothing is in its way."""


class World:
    """What a history begins with: empty topics, tables and database."""

    def __init__(self, folder: Path, database: str, seed: int, partitions: int) -> None:
        self.tables = folder / "tables"
        self.tables.mkdir(parents=True)
        self.database = database
        self.clock = HandClock(START)
        self.kafka = Kafka(partitions)
        self.places = [(EVENTS_TOPIC, partition) for partition in range(partitions)]
        """Topic and partition to which events are sent, in the order in which they were made."""
        self.events = {EVENTS_TOPIC}
        """Topics of events that there ever were."""
        self.ended: dict[str, dict[int, int]] = {}
        """Topics that were removed, with the offset that each partition had been read to by then, at least."""
        self.taken_up: set[str] = set()
        """Topics that were listed while others were read already, or again."""
        self.settings: dict[str, dict[str, Any]] = defaultdict(
            dict,
            ingestion={
                "contracts": CONTRACTS,
                "backfill": BACKFILL,
                "driver_rows": random.Random(f"{seed} rows of ingestion").choice((1, 100, 50_000)),
            },
            sessionization={"min_batch_interval_seconds": 0},
            joins={"driver_rows": random.Random(f"{seed} rows of joins").choice((1, 100, 50_000))},
            billing={"driver_rows": random.Random(f"{seed} driver rows").choice((1, 100, 50_000))},
        )
        self.drivers: dict[str, list[Application]] = {name: [] for name in JOBS}
        self.sent: list[bytes] = []
        """Events that can be repeated."""
        self.has_wrong_stamps = False
        """Whether a broker's clock was ever wrong."""
        self.removed: dict[Table, dict[int, dict[str, Any]]] = {Table.JOURNAL: {}, Table.USAGE: {}}
        """By lsn the rows that retention has taken, for the oracle."""
        self._observer = psycopg.connect(database, autocommit=True)
        self.closed_usage: list[tuple[int, dict[str, datetime]]] = []
        """From which usage lsn on windows that ended by then had been shown closed."""
        self.closed_sessions: dict[int, tuple[Any, ...]] = {}
        """By id what was shown as a closed session: account, user, start, end, events."""
        self._is_settling = False
        self._seed = seed
        self.most_few_rows = random.Random(f"{seed} few").choice((0, 2, 1_000))
        """So many rows a driver reads itself; more are Spark's."""
        self.queries_rest = random.Random(f"{seed} rest").random() < 0.3
        """Whether drivers look for themselves all the time."""
        self._lost: dict[Table, Path] = {}
        self.where = Environment(
            kafka=KafkaAccess(bootstrap=""),
            postgres_url=database,
            tables=str(self.tables),
            checkpoints=folder / "checkpoints",
            jars=Path(),
        )

    def send(
        self,
        partition: int,
        value: bytes | None,
        behind_s: float = 0,
        mark: bytes | None = None,
        first: bytes | None = None,
    ) -> None:
        """A record of an event's topic, stamped by a broker whose clock is behind by so much; None leaves a hole.

        `partition` counts through those of all topics (`places`).
        """
        topic, partition = self.places[partition % len(self.places)]
        self.has_wrong_stamps |= behind_s != 0
        stamp = self.clock.now() - timedelta(seconds=behind_s)
        self.kafka.append(topic, partition, value, stamp, b"key", mark=mark, first=first)

    def event(self, kind: str, subject: str, ago_s: float, source: str = "gateway", **data: Any) -> bytes:
        """A CloudEvent that occurred so long ago."""
        document = {
            "specversion": "1.0",
            "id": f"e{len(self.sent)}",
            "source": source,
            "type": kind,
            "subject": subject,
            "time": rfc3339(self.clock.now() - timedelta(seconds=ago_s)),
            "data": {name: value for name, value in data.items() if value is not None},
        }
        self.sent.append(json.dumps(document).encode())
        return self.sent[-1]

    def take_up(self, topic: str, partitions: int) -> None:
        """A topic is listed, for the first time or again: events are sent to it. It is made where there is none."""
        self.taken_up.add(topic)
        self.ended.pop(topic, None)
        self.events.add(topic)
        log = self.kafka.topics.setdefault(topic, [[] for _ in range(partitions)])
        self.places += [(topic, partition) for partition in range(len(log))]

    def give_up(self, topic: str) -> None:
        """A topic was removed: events are sent to others."""
        self.ended[topic] = {p: self.position(topic, p) for p in range(len(self.kafka.topics[topic]))}
        self.places = [place for place in self.places if place[0] != topic]

    def position(self, topic: str, partition: int) -> int:
        """The next offset that ingestion reads."""
        journal = open_table(str(self.tables), Table.JOURNAL)
        reached = journal and journal.transaction_version(f"kafka:id of {topic}:{partition}")
        return reached or 0

    def unread(self, topic: str) -> Iterator[Record]:
        """The records of a topic that the journal does not have."""
        for partition, log in enumerate(self.kafka.topics[topic]):
            yield from (record for record in log[self.position(topic, partition) :] if record is not None)

    def publish(self, topic: str, after: Mapping[str, Any], *, deleted: bool) -> None:
        """A change of the catalog, in Debezium's envelope."""
        now_ms = int(self.clock.now().timestamp() * 1_000)
        state = {"before": dict(after), "after": None} if deleted else {"before": None, "after": dict(after)}
        value = {**state, "op": "d" if deleted else "u", "ts_ms": now_ms, "source": {"ts_ms": now_ms}}
        self.kafka.append(topic, 0, json.dumps(value).encode(), self.clock.now())

    def stragglers(self) -> list[tuple[int, str, str, str]]:
        """Those that wait, and behind them all others, in order: usage lsn, meter, account, request."""
        query = "SELECT usage_lsn, meter, account, request_id FROM stragglers ORDER BY decision <> 'hold', 1, 2"
        return self._observer.execute(query).fetchall()

    def beat(self, partitions: Container[int] = range(100)) -> None:
        """Heartbeats in these of the partitions that there are."""
        for number, place in enumerate(self.places):
            if number in partitions:
                beat(self.kafka, *place, self.clock.now())

    def add_partition(self, topic: str) -> bool:
        """One more partition of a topic of events, unless it has enough."""
        partitions = self.kafka.topics[topic]
        if len(partitions) >= MAX_PARTITIONS:
            return False
        if topic not in self.ended:
            self.places.append((topic, len(partitions)))
        partitions.append([])
        return True

    def start(self, name: str) -> Application:
        """Another driver, whatever became of the one before it."""
        number = len(self.drivers[name])
        config = CONFIGS[name].model_validate(accepted(self.settings[name]))
        chance = random.Random(f"{self._seed} {name} {number}")
        spark = Spark(self.kafka, chance, is_sound=self._is_settling or chance.random() < 0.75)
        clock = self.clock if self._is_settling else Skewed(self.clock, timedelta(seconds=chance.choice(SKEWS_S)))
        self.drivers[name].append(Application(name, config, self.where, spark, clock))
        return self.drivers[name][-1]

    def run(self, name: str, calls: int, fault: Fault, at: str = "") -> Application:
        """Let the newest driver go on; another one when that has ended."""
        newest = self.drivers[name][-1] if self.drivers[name] else None
        if newest is None or newest.baton.is_over:
            newest = self.start(name)
        newest.go(calls, fault, at)
        self.look()
        return newest

    def wake(self, name: str, which: int, calls: int) -> Application | None:
        """Let an older driver, which has been frozen since, go on."""
        older = [driver for driver in self.drivers[name][:-1] if not driver.baton.is_over]
        if not older:
            return None
        older[which % len(older)].go(calls, Fault.FREEZE)
        return older[which % len(older)]

    def configured(self, name: str) -> JobConfig:
        """What an application's newest driver was started with."""
        return self.drivers[name][-1].config

    def look(self) -> None:
        """Remember what everybody may have seen closed by now."""
        with self._observer.cursor() as cursor:
            found = cursor.execute("SELECT next_position FROM positions WHERE job = 'billing'").fetchone()
            known = "SELECT meter, closed_until FROM closed_meters WHERE closed_until IS NOT NULL"
            closed: dict[str, datetime] = dict(cursor.execute(known).fetchall())
            if found is not None and closed and (found[0], closed) not in self.closed_usage:
                self.closed_usage.append((found[0], closed))
            self.closed_sessions |= {
                session_id: tuple(session)
                for session_id, *session in cursor.execute(
                    "SELECT session_id, account, user_id, session_start, session_end, events"
                    " FROM sessions, closed_sessions WHERE session_end < closed_before"
                ).fetchall()
            }

    def retain(self, days: int) -> int:
        """Remove what is older than so many days; how many rows went."""
        today, gone = self.clock.now().date(), 0
        with psycopg.connect(self.database, autocommit=True) as connection:
            list(retain_rows(connection, Retention(), today))
            for table, removed in self.removed.items():
                before = self.rows(table)
                retain_days(str(self.tables), table, connection, days, today)
                left = self.rows(table).keys()
                removed |= {lsn: row for lsn, row in before.items() if lsn not in left}
                gone += len(before) - len(left)
        return gone

    def rows(self, table: Table) -> dict[int, dict[str, Any]]:
        """A table's rows by lsn."""
        found = open_table(str(self.tables), table)
        return {} if found is None else {row["lsn"]: row for row in found.to_pyarrow_table().to_pylist()}

    def exchange(self, table: Table, commits: int | None, beyond: int | None) -> None:
        """Let a table be away, or as it was so many commits ago, until `restore`; `commits` None: all of it is away.

        `beyond`: it has grown since by a stranger's rows, so many further than it reached before.
        """
        folder, kept = self.tables / table, self.tables.parent / f"lost {table}"
        log = sorted((folder / "_delta_log").glob("*.json"))
        # Of a log that was cut the beginning stands only in a checkpoint, which knows the newest commits, too.
        if table in self._lost or not log or (commits and (len(log) <= commits + 1 or int(log[0].stem) > 0)):
            return
        last = max(self.rows(table).items(), default=(0, None))[1]
        self._lost[table] = folder.rename(kept)
        if commits is not None:
            shutil.copytree(kept, folder)
            gone = [*log[len(log) - commits :], *(folder / "_delta_log").glob("*checkpoint*")]
            for file in gone:
                (folder / "_delta_log" / file.name).unlink()
        if beyond is not None and last is not None:
            self._grow(table, last, last["lsn"] + beyond + 1)

    def _grow(self, table: Table, last: Mapping[str, Any], end: int) -> None:
        stranger = DeltaWriter(str(self.tables), table, "stranger", 1)
        # Another row than the one that stood there, also where no time has passed.
        first, now = stranger.next_lsn, self.clock.now() + timedelta(microseconds=1)
        said = {"account": "stranger", "logged_at": now, "log_date": now.date(), "frontier": None, "rules": None}
        said = {name: value for name, value in said.items() if name in last}
        made = [{**last, **said, "lsn": lsn} for lsn in range(first, end)]
        stranger.commit(pa.Table.from_pylist(made, schema=SCHEMAS[table]), {LSN: end})

    def has_read_beyond(self, job: str, table: Table) -> bool:
        """Whether an application has read rows that its table does not hold now."""
        found = open_table(str(self.tables), table)
        ends = 1 if found is None else found.transaction_version(LSN) or 1
        usage = open_table(str(self.tables), Table.USAGE)
        if job == "joins":
            # What it reads of accounts and prices it has written itself, from the journal: a commit that moved no
            # position, as that of an epoch, is no loss, and it goes on.
            is_own = table is not Table.JOURNAL
            position = f"{table}.journal" if is_own else Table.JOURNAL.value
            if is_own:
                ends = 1 if found is None else found.transaction_version(Table.JOURNAL) or 1
            read = 1 if usage is None else usage.transaction_version(position) or 1
            return read > ends
        found_position = self._observer.execute("SELECT next_position FROM positions WHERE job = %s", [job]).fetchone()
        return found_position is not None and found_position[0] > ends

    def restore(self) -> None:
        """Put back what was lost."""
        for table, kept in self._lost.items():
            shutil.rmtree(self.tables / table, ignore_errors=True)
            kept.rename(self.tables / table)
        self._lost = {}

    def settle(self, *, is_audited: bool = False) -> None:
        """Let everything end: zombies wake, time passes, each application comes to the end, and there is an audit.

        `is_audited`: there is none any more.
        """
        self._is_settling = True
        self.restore()
        for drivers in self.drivers.values():
            for driver in drivers[:-1]:
                driver.go(60, Fault.CRASH)
        self.end()
        for _ in range(3):
            self.clock.go(24 * 3_600)
            self.beat()
        # Whatever was configured last has something to decide.
        self.send(
            0, self.event(EventType.USAGE, "a0", 0, request_id="last", user_id="u0", model="fast", status="completed")
        )
        moved: object = None
        for _ in range(MAX_ROUNDS):
            ended = [self.run(name, ENOUGH_CALLS, Fault.FREEZE) for name in JOBS]
            before, moved = moved, self._positions()
            if before != moved or not all(driver.baton.is_idle for driver in ended):
                continue
            if is_audited:
                return
            # Once more, by all that is known in the end; billing has it to fold.
            audit(str(self.tables), self.clock.now())
            is_audited = True
        ends = {name: drivers[-1].end for name, drivers in self.drivers.items()}
        raise StandsStillError(f"after {MAX_ROUNDS} rounds: {ends}, {moved}")

    def _positions(self) -> object:
        positions = self._observer.execute("SELECT job, next_position, frontier FROM positions ORDER BY job").fetchall()
        logs = [len(list((self.tables / table / "_delta_log").glob("*.json"))) for table in Table]
        return positions, logs

    def end(self) -> None:
        """End all drivers."""
        for drivers in self.drivers.values():
            for driver in drivers:
                driver.baton.crash()

    def close(self) -> None:
        """End all drivers, and look no more."""
        self.end()
        self._observer.close()


def accepted(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without the late policy of a meter that is not declared, which an application refuses."""
    if "meters" not in settings or "late_policy" not in settings:
        return settings
    policy = {name: kept for name, kept in settings["late_policy"].items() if name in settings["meters"]}
    return {**settings, "late_policy": policy}
