"""Sequence numbers of the gateways: in the order of sending, with losses, repeats and restarts by plan.

A repeat of an event has the number of its first. A number is missing when it lies between two that arrived: it was lost
on the way, or the event that had it is rejected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from traffic.script import Record

TROUBLES_PER_SOURCE = 60
"""Of each kind, at most on average: a source with too many holes counts as one that does not number its events."""
LOST = (1, 1, 1, 2, 7, 10_000)
"""How many numbers are lost at once."""

Runs = tuple[tuple[int, int], ...]
"""Numbers from first to last, both included, in order."""


@dataclass(frozen=True)
class Numbering:
    """How a gateway numbers what it sends: from `first` on, with so many restarts, as a JSON number or as text."""

    first: int
    restarts: int
    as_text: bool = False


OF_GATEWAY: Mapping[str, Numbering] = {
    "gateway-eu": Numbering(first=1, restarts=0),
    "gateway-us": Numbering(first=0, restarts=3, as_text=True),
    "gateway-ap": Numbering(first=10**17, restarts=1),
}
"""All others, `edge` and devices among them, number nothing."""


@dataclass(frozen=True)
class Stamp:
    """What an event says: its number, in which epoch of its source."""

    epoch: str
    number: int


def numbered(rng: Random, records: Sequence[Record]) -> list[Record]:
    """The records, in the order of sending, with the numbers of their sources."""
    of_source: dict[str, list[str]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    rejected: dict[str, int] = defaultdict(int)
    for record in records:
        if record.source is None or record.id is None or (record.source, record.id) in seen:
            continue
        seen.add((record.source, record.id))
        if record.disposition == "rejected":
            rejected[record.source] += 1
            if rejected[record.source] > TROUBLES_PER_SOURCE:
                continue
        of_source[record.source].append(record.id)
    stamps = {
        (source, event_id): (stamp, numbering)
        for source, ids in sorted(of_source.items())
        if (numbering := OF_GATEWAY.get(source.split("/", maxsplit=1)[0])) is not None
        for event_id, stamp in zip(ids, _stamps(rng, numbering, len(ids)), strict=True)
    }
    return [_stamped(record, stamps) for record in records]


def _stamped(record: Record, stamps: Mapping[tuple[str, str], tuple[Stamp, Numbering]]) -> Record:
    if record.source is None or record.id is None or (record.source, record.id) not in stamps:
        return record
    stamp, numbering = stamps[record.source, record.id]
    number = f'"{stamp.number}"' if numbering.as_text else f"{stamp.number}"
    epoch = f',"sourceepoch":"{stamp.epoch}"' if stamp.epoch else ""
    value = record.value[:-1] + f',"sequence":{number}{epoch}}}'.encode()
    return replace(record, value=value, source_epoch=stamp.epoch, sequence=stamp.number)


def _stamps(rng: Random, numbering: Numbering, events: int) -> Iterator[Stamp]:
    """One for each event of a source, in the order of sending."""
    share = min(0.05, TROUBLES_PER_SOURCE / max(events, 1))
    starts = {0, *(rng.randrange(events) for _ in range(numbering.restarts))}
    began, following, held = 0, numbering.first, list[Stamp]()
    epoch = ""
    for event in range(events):
        if event in starts:
            began, following = began + 1, numbering.first
            epoch = f"boot-{began}" if numbering.restarts else ""
        drawn = rng.random()
        if drawn < share:
            following += rng.choice(LOST)
        elif drawn < 2 * share:
            held.append(Stamp(epoch, following))  # A later event has it, or none.
            following += 1
        elif drawn < 3 * share and held:
            yield held.pop(0)
            continue
        elif drawn < 4 * share and following > numbering.first:
            yield Stamp(epoch, following - 1)  # A gateway that gives one number to two events.
            continue
        yield Stamp(epoch, following)
        following += 1


def runs_of(numbers: Iterable[int]) -> Runs:
    """The numbers, each once, as runs."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return tuple(runs)
