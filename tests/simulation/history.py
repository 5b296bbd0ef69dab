"""Histories: what a seed draws, step by step. A step says all that it does, so that a history without it can be run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

from deltalake import DeltaTable

from jobs.runtime.delta.compaction import compact
from jobs.streams import EVENTS_TOPIC, CatalogTopic, Table
from metering.instants import rfc3339
from metering.meters import Meter
from metering.words import EventType
from tests.simulation.applications import JOBS
from tests.simulation.calls import Fault
from tests.simulation.world import World

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

    def do(self, world: World) -> str:
        """Append it."""
        world.send(self.partition, self._value(world), self.behind_s)
        return ""

    def _value(self, world: World) -> bytes | None:
        match self.kind:
            case "hole":
                return None
            case "malformed":
                return b"{"
            case "again" if world.sent:
                return world.sent[self.again % len(world.sent)]
            case "conflict" if world.sent:
                return world.sent[self.again % len(world.sent)].replace(b'"data": {', b'"data": {"other": 1, ')
        data: dict[str, Any] = {"request_id": f"r{self.request}"}
        if self.kind != "completion":
            data |= {"user_id": f"u{self.request % 2}", "model": "slow" if self.request % 3 == 0 else "fast"}
        if self.kind != "request":
            data |= {"status": "completed", "input_tokens": self.tokens, "output_tokens": self.request}
        kind = KINDS.get(self.kind)
        return world.event(kind.value if kind else "some.other.v1", f"a{self.account}", self.ago_s, **data)


@dataclass(frozen=True)
class Publish:
    """Somebody changes the catalog: an account's plan and currency, or a unit price of a plan."""

    what: str
    plan: int
    currency: str
    amount: int
    from_s: float | None
    deleted: bool = False

    def do(self, world: World) -> str:
        """Append it to its topic."""
        key: dict[str, Any]
        from_text = None
        if self.from_s is not None:
            from_text = rfc3339(world.clock.now().replace(microsecond=0) + timedelta(seconds=self.from_s))
        if self.what == "account":
            key = {"account": f"a{self.amount % 2}"}
            said = {"plan": f"p{self.plan}", "currency": self.currency, "timezone": "UTC", "effective_from": from_text}
            world.publish(CatalogTopic.ACCOUNTS, key if self.deleted else key | said, deleted=self.deleted)
        else:
            key = {"plan": f"p{self.plan}", "model": "fast", "meter": self.what, "currency": self.currency}
            key |= {"effective_from": from_text or rfc3339(world.clock.now().replace(microsecond=0, second=0))}
            said = {"unit_price": f"0.{self.amount:06d}1"}
            world.publish(CatalogTopic.PRICES, key if self.deleted else key | said, deleted=self.deleted)
        return ""


@dataclass(frozen=True)
class Pass:
    """Time passes, and heartbeats come to some partitions."""

    seconds: float
    beats: tuple[int, ...]

    def do(self, world: World) -> str:
        """Move the clock."""
        world.clock.go(self.seconds)
        world.beat(self.beats)
        return ""


@dataclass(frozen=True)
class Run:
    """The newest driver of an application makes so many outside calls; then `fault` happens to it."""

    job: str
    calls: int
    fault: Fault

    def do(self, world: World) -> str:
        """Let it go on; another driver where that one has ended."""
        driver = world.run(self.job, self.calls, self.fault)
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
class AddPartition:
    """`events` gets one more partition."""

    def do(self, world: World) -> str:
        """Add it."""
        if len(world.kafka.topics[EVENTS_TOPIC]) >= 4:
            return "enough"
        world.kafka.topics[EVENTS_TOPIC].append([])
        return ""


@dataclass(frozen=True)
class Compact:
    """Maintenance merges the files of a table and deletes those that were replaced."""

    table: str

    def do(self, world: World) -> str:
        """Compact it, with all log dates and without any patience for readers."""
        tomorrow = (world.clock.now() + timedelta(days=1)).date()
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


Draw = Callable[[random.Random], list[Step]]


def drawn(seed: int) -> tuple[int, list[Step]]:
    """Partitions at the beginning, and the steps. Each seed has some kinds of steps more often than others."""
    chance = random.Random(seed)
    weights = {draw: weight * chance.choice([0, 1, 1, 3]) for draw, weight in DRAWS.items()}
    weights[_send] = max(weights[_send], 10)
    weights[_run] = max(weights[_run], 10)
    steps = _catalog() if chance.random() < 0.7 else []
    steps += [step for _ in range(chance.randrange(5)) for step in _publish(chance)]
    steps += [_chunk(chance, job) for job in JOBS if chance.random() < 0.4]
    for _ in range(chance.randint(5, 18)):
        steps += chance.choices(list(weights), list(weights.values()))[0](chance)
    return chance.randint(1, 3), steps


ALL = (0, 1, 2, 3)
AGO_S = (0, 0, 1, 30, 59.999999, 60, 600, 1_800, 1_800.000001, 4_000, 90_000, 40 * 86_400, -200, -400)
"""How long ago an event occurred: at the borders of minutes, sessions, the exact hour and the accept window, too."""


def _send(chance: random.Random) -> list[Step]:
    kinds = ["request"] * 4 + ["completion"] * 4 + ["usage"] * 2 + ["again"] * 4
    return [_sent(chance, chance.choice([*kinds, "conflict", "hole", "malformed", "other"]))]


def _sent(chance: random.Random, kind: str) -> Send:
    return Send(
        partition=chance.randrange(4),
        kind=kind,
        account=chance.choice([0, 0, 1, 2]),
        request=chance.randrange(4),
        ago_s=chance.choice(AGO_S),
        tokens=chance.choice([None, 0, 1, 7, 10**12, 10**17]),
        behind_s=chance.choice([0, 0, 0, 0.5, 20, -20, 100]),
        again=chance.randrange(40),
    )


def _pair(chance: random.Random) -> list[Step]:
    """A request, and its completion some time later; mostly nobody has read anything between."""
    request = _sent(chance, "request")
    completion = replace(_sent(chance, "completion"), account=request.account, request=request.request)
    return [request, *(_pass(chance) if chance.random() < 0.5 else []), completion]


def _repeat(chance: random.Random) -> list[Step]:
    """An event that occurred a while ago, and comes again later than the exact hour."""
    first = replace(_sent(chance, "request"), ago_s=chance.choice([3_700, 4_000, 90_000]))
    return [first, Pass(chance.choice([3_590, 3_700, 90_000]), ALL), replace(_sent(chance, "again"), again=-1)]


def _catalog() -> list[Step]:
    """Two accounts with a plan that has prices."""
    prices: list[Step] = [Publish(meter.value, 0, "EUR", number, -90_000) for number, meter in enumerate(Meter)]
    return [*prices, *[Publish("account", 0, "EUR", account, None) for account in range(2)]]


def _publish(chance: random.Random) -> list[Step]:
    return [
        Publish(
            what=chance.choice(["account", "account", *Meter]),
            plan=chance.randrange(2),
            currency=chance.choice(["EUR", "EUR", "USD"]),
            amount=chance.randrange(1_000),
            from_s=chance.choice([None, None, 0, -3_600, 60, -60]),
            deleted=chance.random() < 0.1,
        )
    ]


def _pass(chance: random.Random) -> list[Step]:
    seconds = chance.choice([0.001, 1, 5, 30, 60, 300, 600, 601, 900, 1_800, 1_801, 3_700, 90_000, 70 * 86_400])
    return [Pass(seconds, chance.choice([ALL, ALL, ALL, (0,), (0, 1), ()]))]


def _job(chance: random.Random) -> str:
    return chance.choice([*JOBS, "ingestion"])


def _calls(chance: random.Random) -> int:
    return int(2 ** chance.uniform(0, 8))


def _run(chance: random.Random) -> list[Step]:
    faults = [Fault.FREEZE] * 4 + [Fault.CRASH, Fault.FAIL, Fault.LOSE_ANSWER]
    return [Run(_job(chance), _calls(chance), chance.choice(faults))]


def _round(_: random.Random) -> list[Step]:
    """All applications come to the end of their input."""
    return [Run(job, ENOUGH, Fault.FREEZE) for job in JOBS]


CHANGES: dict[tuple[str, str], tuple[Any, ...]] = {
    ("joins", "completion_timeout_seconds"): (60, 600, 1_200),
    ("joins", "completion_timeouts"): ({}, {"slow": 30}, {"slow": 1_500}),
    ("billing", "grace_seconds"): (0, 60, 900, 7_200),
    ("billing", "late_policy"): ({}, {"requests": "drop"}),
    ("sessionization", "session_gap_seconds"): (30, 1_800, 3_600),
}


def _configure(chance: random.Random) -> list[Step]:
    """A configuration and then another, with traffic under both; only a start reads it."""
    (job, field), values = chance.choice(list(CHANGES.items()))
    steps: list[Step] = []
    for value in chance.sample(values, 2):
        steps += [Configure(job, field, value), Run(job, 0, Fault.CRASH)]
        steps += [step for _ in range(chance.randint(1, 3)) for step in _pair(chance)]
        steps += [Pass(chance.choice([1, 60, 300, 700]), ALL), *_round(chance)]
    return steps


def _add_partition(chance: random.Random) -> list[Step]:
    """A partition that stays empty for a while, and then has a record by a clock that is behind."""
    late = replace(_sent(chance, "request"), partition=-1, behind_s=chance.choice([0, 20, 100]))
    return [AddPartition(), Pass(chance.choice([1, 60, 300]), chance.choice([ALL, (0,)])), _ingest(), late]


def _ingest() -> Step:
    return Run("ingestion", ENOUGH, Fault.FREEZE)


def _chunk(chance: random.Random, job: str) -> Step:
    return Configure(job, "max_records_per_batch", chance.choice([1, 2, 3, 5, 20]))


def _exchange(chance: random.Random) -> list[Step]:
    tables = [Table.JOURNAL, Table.JOURNAL, Table.USAGE, Table.USAGE, Table.ACCOUNTS, Table.PRICES]
    commits = chance.choice([None, None, 1, 2, 5])
    return [Exchange(chance.choice(tables).value, commits, chance.choice([None, 0, 1, 3]), chance.random() < 0.5)]


DRAWS: dict[Draw, int] = {
    _send: 20,
    _pair: 6,
    _repeat: 3,
    _publish: 4,
    _pass: 8,
    _run: 24,
    _round: 2,
    lambda chance: [Double(_job(chance), _calls(chance))]: 3,
    lambda chance: [Wake(_job(chance), chance.randrange(3), _calls(chance))]: 4,
    _configure: 2,
    _add_partition: 2,
    lambda chance: [Compact(chance.choice([Table.JOURNAL, Table.USAGE]).value)]: 2,
    lambda _: [Retain(36)]: 1,
    lambda chance: [CutLog(chance.choice(list(Table)).value)]: 1,
    _exchange: 3,
}
