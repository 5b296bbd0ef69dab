"""The steps of a history. A step says all that it does, so that a history without it can be run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import psycopg
from deltalake import DeltaTable

from jobs.billing.config import BillingConfig
from jobs.rebuild import run as rebuilding
from jobs.runtime.delta.compaction import compact
from jobs.runtime.errors import Refused
from jobs.streams import EVENTS_TOPIC, CatalogTopic, Table
from jobs.tables_read import refuse_tables_not_read
from metering.instants import rfc3339
from metering.price_models import ALIAS_CURRENCY, ALIAS_METER, PricedModel
from metering.vocabulary import Disposition, EventType, Job
from tests.simulation.audits import audit, proof
from tests.simulation.calls import Fault
from tests.simulation.declared import COUNTED_ONCE, DECLARED, DESK, HISTORY, OTHER_TYPE, REVERSAL_TYPE
from tests.simulation.world import CONFIGS, START, World

ENOUGH = 1_000
"""Outside calls with which a driver comes to the end of what these histories hold."""
KINDS = {"request": EventType.REQUEST, "completion": EventType.COMPLETION, "usage": EventType.USAGE}
READS = {
    Table.JOURNAL: ("sessionization", "joins"),
    Table.USAGE: ("billing",),
    Table.ACCOUNTS: ("joins",),
    Table.PRICES: ("joins",),
}


class Step(Protocol):
    """One thing that happens."""

    def do(self, world: World) -> str:
        """Let it happen; what came of it, for whoever reads the history."""


@dataclass(frozen=True)
class Send:
    """A gateway sends an event, or one again (`again`: which of those sent before), or another under its identity."""

    partition: int
    kind: str
    account: int
    request: int
    ago_s: float
    tokens: int | None
    behind_s: float = 0
    again: int = 0
    reasoning: int | None = None
    seconds: float | None = None
    status: str = "completed"
    usage_source: str | None = None
    region: str | None = None
    cached: bool | None = None

    def do(self, world: World) -> str:
        """Append it."""
        world.send(self.partition, self.value(world), self.behind_s)
        return ""

    def value(self, world: World, source: str = "gateway") -> bytes | None:
        """What is sent; None: it leaves a hole."""
        match self.kind:
            case "hole":
                return None
            case "malformed":
                return b"{"
            case "again" if world.sent:
                return world.sent[self.again % len(world.sent)]
            case "anew" if world.sent:
                document = json.loads(world.sent[self.again % len(world.sent)])
                return json.dumps({**document, "time": rfc3339(world.clock.now())}).encode()
            case "conflict" if world.sent:
                return world.sent[self.again % len(world.sent)].replace(b'"data": {', b'"data": {"other": 1, ')
        data: dict[str, Any] = {"request_id": f"r{self.request}"}
        if self.kind != "completion":
            data |= {"user_id": f"u{self.request % 2}", "model": "slow" if self.request % 3 == 0 else "fast"}
        if self.kind != "request":
            data |= {"status": self.status, "usage_source": self.usage_source}
            data |= {"input_tokens": self.tokens, "output_tokens": self.request}
            # Of every second request half of the input is cached, which has a price of its own.
            data |= {
                "reasoning_tokens": self.reasoning,
                "cached_tokens": self.tokens and self.request % 2 * self.tokens // 2,
            }
            data |= {} if self.cached is None else {"cached": self.cached}
        data |= {} if self.region is None else {"region": self.region}
        if self.kind == "completion":
            data |= {"gpu_seconds": self.seconds}
        kind = KINDS.get(self.kind)
        return world.event(kind.value if kind else OTHER_TYPE, f"a{self.account}", self.ago_s, source, **data)


@dataclass(frozen=True)
class Reverse:
    """Somebody takes back what a request bills, or so much of what a meter bills of it."""

    partition: int
    account: int
    request: int
    meter: str | None = None
    quantity: float | None = None

    def do(self, world: World) -> str:
        """Append the event, whether or not there is such a request."""
        said = {"request_id": f"r{self.request}", "reason": "disputed", "meter": self.meter, "quantity": self.quantity}
        world.send(self.partition, world.event(REVERSAL_TYPE, f"a{self.account}", 0, DESK, **said))
        return ""


@dataclass(frozen=True)
class Backfill:
    """Somebody sends an event of the past, with when it was received first: so long ago, or what `mark` says.

    `is_listed`: of the source whose marks are trusted.
    """

    made: Send
    first_ago_s: float
    is_listed: bool = True
    mark: str | None = None

    def do(self, world: World) -> str:
        """Append it, with its mark."""
        first = rfc3339(world.clock.now() - timedelta(seconds=self.first_ago_s)) if self.mark is None else self.mark
        value = self.made.value(world, HISTORY if self.is_listed else "gateway")
        world.send(self.made.partition, value, self.made.behind_s, first=first.encode())
        return first


@dataclass(frozen=True)
class Replay:
    """Somebody sends a dead letter again, as it was or as another event; or any record with the mark of any (`place`).

    `which`: of the dead letters that the journal has and that are none of a replay.
    """

    which: int
    partition: int
    made: Send | None = None
    place: tuple[int, int] | None = None

    def do(self, world: World) -> str:
        """Append it, with the mark of the first."""
        dead = [row for row in world.rows(Table.JOURNAL).values() if _is_first_dead_letter(row)]
        if self.place is None and not dead:
            return "there is none"
        nothing: dict[str, Any] = {"topic": EVENTS_TOPIC, "partition": 0, "offset": 0, "value": b"{"}
        row = dead[self.which % len(dead)] if dead else nothing
        partition, offset = (row["partition"], row["offset"]) if self.place is None else self.place
        value = row["value"] if self.made is None else self.made.value(world)
        mark = f"{row['topic']}/{partition}/{offset}"
        world.send(self.partition, value, mark=mark.encode())
        return mark


def _is_first_dead_letter(row: dict[str, Any]) -> bool:
    is_event = row["topic"] not in set(CatalogTopic)
    return is_event and row["disposition"] == Disposition.REJECTED and row["replay_mark"] is None


@dataclass(frozen=True)
class Publish:
    """Somebody changes the catalog: an account's plan and currency, or a unit price of a plan."""

    what: str
    plan: int
    currency: str
    amount: int
    from_s: float | None
    deleted: bool = False
    model: str = "fast"

    def do(self, world: World) -> str:
        """Append it to its topic."""
        key: dict[str, Any]
        from_text = None
        if self.from_s is not None:
            from_text = rfc3339(world.clock.now().replace(microsecond=0) + timedelta(seconds=self.from_s))
        if self.what == "account":
            key = {"account": f"a{self.amount % 2}"}
            said = {"plan": f"p{self.plan}", "currency": self.currency, "timezone": "UTC", "effective_from": from_text}
            _tell(world, CatalogTopic.ACCOUNTS, key, said, deleted=self.deleted)
        else:
            key = {"plan": f"p{self.plan}", "model": self.model, "meter": self.what, "currency": self.currency}
            key |= {"effective_from": from_text or rfc3339(world.clock.now().replace(microsecond=0, second=0))}
            _tell(world, CatalogTopic.PRICES, key, {"unit_price": f"0.{self.amount:06d}1"}, deleted=self.deleted)
        return ""


def _tell(world: World, topic: CatalogTopic, key: dict[str, Any], said: dict[str, Any], *, deleted: bool) -> None:
    """By one, by another, or of a release that kept no name."""
    author = (None, "ann", "bob")[len(world.kafka.topics[topic][0]) % 3]
    changed = {"changed_by": author, "changed_at": rfc3339(world.clock.now())} if author else {}
    world.publish(topic, key if deleted else key | said | changed, deleted=deleted)


@dataclass(frozen=True)
class Name:
    """Somebody gives a name the prices of a model, on a plan and from so long after the beginning on; or ends that."""

    plan: int
    name: str
    model: str
    from_s: float
    deleted: bool = False

    def do(self, world: World) -> str:
        """Append it to the topic of prices."""
        key = {"plan": f"p{self.plan}", "model": PricedModel.alias(self.name, self.model).text}
        key |= {"meter": ALIAS_METER, "currency": ALIAS_CURRENCY}
        key |= {"effective_from": rfc3339(START + timedelta(seconds=self.from_s))}
        _tell(world, CatalogTopic.PRICES, key, {"unit_price": "0"}, deleted=self.deleted)
        return ""


@dataclass(frozen=True)
class Decide:
    """Somebody decides about a straggler (`which` of those that there are), or in vain about another's request."""

    which: int
    decision: str
    is_wrong: bool

    def do(self, world: World) -> str:
        """Append it to its topic."""
        found = world.stragglers()
        lsn, meter, account, request = found[self.which % len(found)] if found else (1, "requests", "a0", "r0")
        key = {"usage_lsn": lsn, "meter": meter}
        said = {"account": account, "request_id": "other" if self.is_wrong else request, "decision": self.decision}
        after = {**key, **said, "reason": "it is late", "decided_by": "ann"}
        world.publish(CatalogTopic.DECISIONS, after, deleted=False)
        return f"{meter} of usage {lsn}"


@dataclass(frozen=True)
class Pass:
    """Time passes, and heartbeats come to some partitions; `but_newest`: not to the one that was added last."""

    seconds: float
    beats: tuple[int, ...]
    but_newest: bool = False

    def do(self, world: World) -> str:
        """Move the clock."""
        world.clock.go(self.seconds)
        newest = len(world.places) - 1
        world.beat([partition for partition in self.beats if partition != newest or not self.but_newest])
        return ""


@dataclass(frozen=True)
class Run:
    """The newest driver of an application makes so many outside calls; then `fault` happens, at a call `at`."""

    job: str
    calls: int
    fault: Fault
    at: str = ""

    def do(self, world: World) -> str:
        """Let it go on; another driver where that one has ended."""
        driver = world.run(self.job, self.calls, self.fault, self.at)
        return f"driver {len(world.drivers[self.job])}, {driver.baton.made} calls; {driver.end or 'lives'}"


@dataclass(frozen=True)
class Double:
    """Another driver is started beside the one that lives, which stays frozen where it is."""

    job: str
    calls: int

    def do(self, world: World) -> str:
        """Start it."""
        driver = world.start(self.job)
        driver.go(self.calls, Fault.FREEZE)
        return driver.end or "lives"


@dataclass(frozen=True)
class Wake:
    """A driver that was followed by another wakes."""

    job: str
    which: int
    calls: int

    def do(self, world: World) -> str:
        """Let it go on."""
        driver = world.wake(self.job, self.which, self.calls)
        return "there is none" if driver is None else driver.end or "lives"


@dataclass(frozen=True)
class Configure:
    """A field of an application's configuration changes; its next driver reads it."""

    job: str
    field: str
    value: Any

    def do(self, world: World) -> str:
        """Change it."""
        world.settings[self.job][self.field] = self.value
        return ""


@dataclass(frozen=True)
class Declare:
    """Other meters are declared (`declared.DECLARED`): each application counts by them from its next driver on."""

    meters: str

    def do(self, world: World) -> str:
        """Change them."""
        for job in CONFIGS:
            world.settings[job]["meters"] = {**DECLARED, **COUNTED_ONCE}[self.meters]
        return ""


@dataclass(frozen=True)
class AddPartition:
    """A topic of events gets one more partition, if it is there."""

    topic: str = EVENTS_TOPIC

    def do(self, world: World) -> str:
        """Add it."""
        if self.topic not in world.kafka.topics:
            return "there is none"
        return "" if world.add_partition(self.topic) else "enough"


@dataclass(frozen=True)
class Compact:
    """Maintenance merges the files of a table and deletes those that were replaced."""

    table: str

    def do(self, world: World) -> str:
        """Compact it, with all log dates and without any patience for readers."""
        tomorrow = (world.clock.now() + timedelta(days=1)).date()
        with psycopg.connect(world.database, autocommit=True) as connection:
            refuse_tables_not_read(str(world.tables), connection)
        done = compact(str(world.tables), Table(self.table), before=tomorrow, keep=timedelta(0))
        return "there is none" if done is None else f"{done.files_before} files became {done.files_after}"


@dataclass(frozen=True)
class CutLog:
    """The log of a table is cleaned up to its newest checkpoint, as if all of it had expired."""

    table: str

    def do(self, world: World) -> str:
        """Delete the commits before a checkpoint of now."""
        folder = world.tables / self.table / "_delta_log"
        if not folder.exists():
            return "there is none"
        found = DeltaTable(str(world.tables / self.table))
        found.create_checkpoint()
        expired = [commit for commit in folder.glob("*.json") if int(commit.stem) < found.version()]
        for commit in expired:
            commit.unlink()
        return f"{len(expired)} commits"


@dataclass(frozen=True)
class Retain:
    """`weir retain` removes what is old enough."""

    days: int

    def do(self, world: World) -> str:
        """Remove it."""
        return f"{world.retain(self.days)} rows"


@dataclass(frozen=True)
class Audit:
    """`weir audit` appends what it corrects, whatever the applications are in the middle of."""

    def do(self, world: World) -> str:
        """Audit all that is there."""
        said = audit(str(world.tables), world.clock.now())
        if said is None:
            return "there is no usage yet"
        assert not said.faults, said.faults
        wrong = [*proof(str(world.tables), world.database, world.clock.now())]
        assert not wrong, wrong
        return f"{said.appended} rows"


@dataclass(frozen=True)
class Rebuild:
    """`weir rebuild billing`, whatever its drivers are in the middle of; `is_lost`: after all it had is lost."""

    is_lost: bool

    def do(self, world: World) -> str:
        """Make billing's tables again, twice where they are lost."""
        rebuild = rebuilding.Rebuild(Job.BILLING, str(world.tables), world.database, BillingConfig())
        try:
            made = rebuild.run()
        except Refused as refusal:
            return str(refusal)
        if self.is_lost:
            with psycopg.connect(world.database) as connection:
                for table in rebuild.plan.emptied:
                    connection.execute(f"DELETE FROM {table}")
                for table in ("rules", "positions", "batches"):
                    connection.execute(f"DELETE FROM {table} WHERE job = 'billing'")
            made = rebuild.run()
        return str(made)


@dataclass(frozen=True)
class Exchange:
    """A table is away, or as it was some commits ago and then a stranger's, while its readers run; then it is back."""

    table: str
    commits: int | None
    beyond: int | None
    is_restarted: bool

    def do(self, world: World) -> str:
        """Only those run that have read beyond what is left: others would go on from it, and be right to."""
        table = Table(self.table)
        world.exchange(table, self.commits, None)
        ahead = [job for job in READS[table] if world.has_read_beyond(job, table)]
        world.restore()
        if table in (Table.ACCOUNTS, Table.PRICES):
            # What is priced from them comes from elsewhere.
            Send(0, "usage", 0, 1, 0, 7).do(world)
            world.run("ingestion", ENOUGH, Fault.FREEZE)
        world.exchange(table, self.commits, self.beyond)
        for job in ahead if self.is_restarted else []:
            world.run(job, 0, Fault.CRASH)
        # One that lives and sees it ends; the next one starts on what is there.
        ends = [f"{job}: {world.run(job, ENOUGH, Fault.FREEZE).end or 'lives'}" for job in ahead * 2]
        world.restore()
        return "; ".join(ends)
