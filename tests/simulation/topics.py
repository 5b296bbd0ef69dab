"""Several topics of events: what happens to them, and histories that are spread over two.

A world counts through the partitions of all topics (`World.places`), so every step that sends or beats may reach any.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from jobs.ingestion.topic_removals import check_removal, store_removal, topics_listed
from jobs.runtime.delta.table import open_table
from jobs.runtime.effective_rules import read_history
from jobs.streams import EVENTS_TOPIC, Table
from metering.vocabulary import EventType
from tests.simulation.calls import Fault
from tests.simulation.declared import OTHER_TYPE
from tests.simulation.steps import (
    ENOUGH,
    AddPartition,
    Audit,
    Backfill,
    Pass,
    Replay,
    Reverse,
    Run,
    Send,
    Step,
)
from tests.simulation.world import MAX_PARTITIONS, World

MORE = "more"
"""The second topic."""
PLACES = 2 * MAX_PARTITIONS
Listed = tuple[tuple[str, tuple[str, ...]], ...]
"""Topics with the types that they take; all where there are none."""
TYPES: tuple[tuple[str, ...], ...] = (
    (),
    (),
    (EventType.USAGE.value,),
    (EventType.REQUEST.value, EventType.COMPLETION.value),
    (OTHER_TYPE, EventType.COMPLETION.value),
)


def listed(world: World) -> list[Mapping[str, Any]]:
    """The topics of ingestion's next start."""
    return list(world.settings["ingestion"].get("events") or [{"topic": EVENTS_TOPIC, "types": ()}])


def read_so_far(world: World) -> tuple[str, ...]:
    """The topics that the journal's rules list."""
    journal = open_table(str(world.tables), Table.JOURNAL)
    return () if journal is None else topics_listed(read_history(journal)[0])


@dataclass(frozen=True)
class ListTopics:
    """Ingestion's next driver reads these topics; one that there is not gets so many partitions."""

    topics: Listed
    partitions: int = 1

    def do(self, world: World) -> str:
        """Change the configuration. Whatever it does not list and was read stays listed."""
        given = dict(self.topics)
        kept = {topic["topic"]: tuple(topic["types"]) for topic in listed(world)}
        world.settings["ingestion"]["events"] = [
            {"topic": name, "types": given.get(name, kept.get(name, ()))} for name in {**kept, **given}
        ]
        for name in given.keys() - kept.keys():
            world.take_up(name, self.partitions)
        return ""


@dataclass(frozen=True)
class LeaveOut:
    """Ingestion is started without a topic that nobody has removed; then with all again."""

    topic: str

    def do(self, world: World) -> str:
        """Nothing may be left out in silence: the start is refused."""
        before = listed(world)
        left = [topic for topic in before if topic["topic"] != self.topic]
        if not _can_be_read(left) or self.topic not in read_so_far(world):
            return "it stays"
        world.settings["ingestion"]["events"] = left
        world.run("ingestion", 0, Fault.CRASH)
        driver = world.start("ingestion")
        driver.go(ENOUGH, Fault.FREEZE)
        world.settings["ingestion"]["events"] = before
        assert driver.end.startswith("Refused: the configuration no longer lists"), driver.end or "it lives"
        return driver.end


@dataclass(frozen=True)
class EndTopic:
    """`weir topics remove`: ingestion goes on without a topic from its next driver on; somebody writes to it then."""

    topic: str
    written_later: Send | None = None
    is_loss_accepted: bool = False

    def do(self, world: World) -> str:
        """Store the removal, as the command does once all is read, and leave the topic out."""
        left = [topic for topic in listed(world) if topic["topic"] != self.topic]
        if not _can_be_read(left) or self.topic not in read_so_far(world):
            return "it stays"
        unread = len([*world.unread(self.topic)])
        if unread and not self.is_loss_accepted:
            return f"{unread} are unread"
        with psycopg.connect(world.database) as connection:
            number = store_removal(connection.cursor(), self.topic, "moved", "ann", unread=unread, waiting=0)
            assert check_removal(connection.cursor(), number, unread=unread, waiting=0)
        world.settings["ingestion"]["events"] = left
        world.give_up(self.topic)
        if self.written_later is not None:
            value = self.written_later.value(world)
            world.kafka.append(self.topic, 0, value, world.clock.now(), b"key")
        return f"{unread} are lost"


def _can_be_read(topics: list[Mapping[str, Any]]) -> bool:
    return any(not topic["types"] for topic in topics)


def with_topics(chance: random.Random, steps: list[Step]) -> list[Step]:
    """The same steps over two topics, the second from the beginning or later on; one ends now and then, and comes back.

    Events are sent, doubled and contradicted in both; heartbeats come in one alone; partitions grow in each.
    """
    steps = [_spread(chance, step) for step in steps]
    begins = chance.choice([0, 0, 0, chance.randint(0, len(steps))])
    both = ((EVENTS_TOPIC, ()), (MORE, chance.choice(TYPES)))
    first: list[Step] = [ListTopics(both if chance.random() < 0.8 else both[::-1], chance.randint(1, 3))]
    first += [Run("ingestion", 0, Fault.CRASH)] if begins or chance.random() < 0.5 else []
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(begins, len(steps))
        draw = chance.choice([_crossed, _crossed, _in_one_alone, _left_out, _grown])
        steps = [*steps[:at], *draw(chance), *steps[at:]]
    if chance.random() < 0.5:
        at = chance.randint(begins + (len(steps) - begins) // 2, len(steps))
        steps = [*steps[:at], *_ended(chance, both), *steps[at:]]
    return [*steps[:begins], *first, *steps[begins:]]


def _spread(chance: random.Random, step: Step) -> Step:
    """In any partition of both topics; heartbeats in all, or in those of one."""
    match step:
        case Send(partition=-1):
            return step
        case Send() | Reverse() | Replay(place=None):
            return replace(step, partition=chance.randrange(PLACES))
        case Backfill():
            return replace(step, made=replace(step.made, partition=chance.randrange(PLACES)))
        case Pass(beats=(0, 1, 2, 3)):
            return replace(step, beats=tuple(range(PLACES)))
    return step


def _event(chance: random.Random) -> Send:
    kind = chance.choice(["request", "completion", "usage", "usage"])
    return Send(chance.randrange(PLACES), kind, chance.randrange(3), chance.randrange(4), 0, chance.choice([0, 7]))


def _crossed(chance: random.Random) -> list[Step]:
    """An event in one place, and it again, or another by its identity, in others: at once, after a while, or late."""
    steps: list[Step] = [_event(chance)]
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.5:
            steps += [Pass(chance.choice([1, 60, 3_590, 3_700, 90_000]), tuple(range(PLACES)))]
        steps += [_ingest()] if chance.random() < 0.3 else []
        again = replace(_event(chance), kind=chance.choice(["again", "again", "conflict"]), again=-1)
        steps.append(again)
    return steps


def _in_one_alone(chance: random.Random) -> list[Step]:
    """For a while, or for days, one topic alone is heard of, while the other may hold what nobody has read yet."""
    beats = chance.choice([(0,), (0, 1), (3, 4, 5), (1, 2, 3, 4, 5, 6, 7)])
    waits = Pass(chance.choice([60, 700, 1_801, 3 * 86_400]), beats)
    return [_event(chance), waits, *_round(), _event(chance), waits, *_round(), *_audited(chance)]


def _left_out(chance: random.Random) -> list[Step]:
    return [_ingest(), LeaveOut(chance.choice([MORE, EVENTS_TOPIC]))]


def _grown(chance: random.Random) -> list[Step]:
    """A topic gets another partition, which is heard of at once, later or never before the end."""
    steps: list[Step] = [_ingest()] if chance.random() < 0.5 else []
    first = replace(_event(chance), partition=-1)
    silence = Pass(chance.choice([1, 60, 700]), tuple(range(PLACES)), but_newest=chance.random() < 0.7)
    rest: list[Step] = [first, silence] if chance.random() < 0.5 else [silence, _ingest(), first]
    return [*steps, AddPartition(chance.choice([MORE, MORE, EVENTS_TOPIC])), *rest]


def _ended(chance: random.Random, both: Listed) -> list[Step]:
    """One of them ends, with somebody who has not heard of it; half of the time it is listed again, after any time."""
    topic = chance.choice([MORE, MORE, EVENTS_TOPIC])
    written = chance.choice([None, _event(chance)])
    steps: list[Step] = [_ingest(), EndTopic(topic, written, is_loss_accepted=chance.random() < 0.2)]
    steps += [Run("ingestion", chance.choice([0, 3, 20]), Fault.CRASH), _ingest()] if chance.random() < 0.8 else []
    for _ in range(chance.randint(0, 2)):
        steps += [_event(chance), Pass(chance.choice([1, 700, 90_000]), tuple(range(PLACES))), *_round()]
    if chance.random() < 0.5:
        steps += [ListTopics(both), Run("ingestion", 0, Fault.CRASH), *_audited(chance), _event(chance), _ingest()]
    return steps


def _audited(chance: random.Random) -> list[Step]:
    return [Audit()] if chance.random() < 0.5 else []


def _ingest() -> Step:
    return Run("ingestion", ENOUGH, Fault.FREEZE)


def _round() -> list[Step]:
    return [Run(job, ENOUGH, Fault.FREEZE) for job in ("ingestion", "sessionization", "joins", "billing")]
