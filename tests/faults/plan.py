"""Which fault happens when: a pure function of the seed. A fault does not wait for the recovery from the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from metering.vocabulary import ALWAYS

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 10.0, 15.0
RULE_OF_THREE = 3
"""Without a failure in n tries the chance of one is below 3/n, with 95 % confidence: 0.95 = 1 - (1 - 3/n)^n."""


class Kind(StrEnum):
    """What is done to its target."""

    KILL = "kill"
    """SIGKILL to a driver's Python, to the broker, to the postmaster, or to the API."""
    KILL_JAVA = "kill its Java"
    FREEZE = "freeze"
    """SIGSTOP to every process of it, and SIGCONT."""
    FREEZE_JAVA = "freeze its Java"
    SECOND_DRIVER = "second driver"
    """Another driver of the same job beside the supervised one."""
    ZOMBIE = "zombie"
    """Frozen, replaced by a second driver, and woken."""
    LOSE_CHECKPOINT = "lose its checkpoint"
    """Spark's checkpoint and scratch are deleted, and the driver is killed."""
    BACKLOG = "backlog"
    """Frozen for a minute or more, and then killed: its successor starts behind."""
    CUT = "cut"
    """Every connection ends, new ones too, until it is over."""
    DELAY = "delay"
    """Each answer comes late."""
    BLACKHOLE = "blackhole"
    """Nothing comes through and nothing ends; when it is over the old connections are reset."""
    ANSWER_LOST = "answer lost"
    """What a client asks for is done, and its connection ends before it hears of it: for the store, it is told 503."""
    POISON = "poison"
    """A record that inflates to 150 MiB."""
    CLOCK_AHEAD = "clock ahead"
    """The broker's clock alone."""


SERVERS = ("kafka", "postgres")
STORE = "store"
API = "api"


@dataclass(frozen=True)
class Drawn:
    """Whom a kind may hit, how long it lasts, and how many `times` a round has it.

    What costs a driver its life comes once: with two cores four drivers would do nothing else but start.
    """

    targets: Sequence[str]
    least_seconds: float = 0.0
    most_seconds: float = 0.0
    times: int = 1


KINDS: dict[Kind, Drawn] = {
    Kind.KILL: Drawn((*ALWAYS, *SERVERS, API)),
    Kind.KILL_JAVA: Drawn(ALWAYS),
    Kind.FREEZE: Drawn((*ALWAYS, *SERVERS, API), 2, 25, times=4),
    Kind.FREEZE_JAVA: Drawn(ALWAYS, 2, 25, times=4),
    Kind.SECOND_DRIVER: Drawn(ALWAYS),
    Kind.ZOMBIE: Drawn(ALWAYS, 25, 60),
    Kind.LOSE_CHECKPOINT: Drawn(ALWAYS),
    Kind.BACKLOG: Drawn(ALWAYS, 50, 90),
    Kind.CUT: Drawn((*SERVERS, STORE), 0, 15, times=6),
    Kind.DELAY: Drawn((*SERVERS, STORE), 5, 20, times=6),
    Kind.BLACKHOLE: Drawn((*SERVERS, STORE), 5, 30, times=6),
    Kind.ANSWER_LOST: Drawn((*SERVERS, STORE), 10, 20, times=6),
    Kind.POISON: Drawn(("kafka",)),
    Kind.CLOCK_AHEAD: Drawn(("kafka",), 5, 20, times=4),
}


@dataclass(frozen=True)
class Fault:
    """One fault. `at_seconds` is since the traffic began; it is over `lasts_seconds` later."""

    at_seconds: float
    kind: Kind
    target: str
    lasts_seconds: float

    def __str__(self) -> str:
        lasts = f" for {self.lasts_seconds:.0f} s" if self.lasts_seconds else ""
        return f"{self.kind}: {self.target}{lasts}"


def draw(seed: int, count: int, left_out: frozenset[tuple[Kind, str]] = frozenset()) -> list[Fault]:
    """So many faults, in rounds: every kind hits every target of its own so many times as `KINDS` says."""
    rng = Random(f"faults {seed}")
    pairs = [(kind, target) for kind, drawn in KINDS.items() for target in drawn.targets for _ in range(drawn.times)]
    shuffled = _rounds(rng, [pair for pair in pairs if pair not in left_out])
    faults, at_seconds = [], 0.0
    for _ in range(count):
        at_seconds += rng.uniform(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        kind, target = next(shuffled)
        lasts_seconds = rng.uniform(KINDS[kind].least_seconds, KINDS[kind].most_seconds)
        faults.append(Fault(round(at_seconds, 1), kind, target, round(lasts_seconds, 1)))
    return faults


def _rounds(rng: Random, pairs: list[tuple[Kind, str]]) -> Iterator[tuple[Kind, str]]:
    while True:
        rng.shuffle(pairs)
        yield from pairs


def bound(faults: int, failures: int) -> float | None:
    """What the chance that a fault costs something is below, with 95 % confidence; None after a failure."""
    return None if failures or not faults else min(1.0, RULE_OF_THREE / faults)
