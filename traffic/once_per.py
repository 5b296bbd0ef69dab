"""Meters that count each content once: which of several outcomes counts after an audit. Live each does.

Of an account's outcomes with one content, the first by event time counts in each window, which is aligned to the epoch.
What bills nothing of the meter, as it was taken back, does not compete. No two of a content occur at one instant: what
else decides then, the traffic does not know. So nothing but CONTENT may say what counts once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from traffic.bills import Bill
from traffic.meters import CONTENT, Meter
from traffic.placement import UnplaceableError
from traffic.script import Outcome

Billed = tuple[Outcome, Bill]
SECOND_US = 1_000_000


def counted_once(meters: Iterable[Meter], bills: Sequence[Billed]) -> list[Billed]:
    """What outcomes bill if each counts → what they bill, in their order.

    Raises UnplaceableError where the first is not certain.
    """
    gone: dict[int, set[str]] = defaultdict(set)
    for meter in meters:
        for number in _not_first(meter, bills):
            gone[number].add(meter.name)
    return [(outcome, _without(bill, gone[n]) if n in gone else bill) for n, (outcome, bill) in enumerate(bills)]


def _not_first(meter: Meter, bills: Sequence[Billed]) -> Iterable[int]:
    """The numbers of the outcomes that do not count."""
    if meter.once_per is None:
        return
    column, within_seconds = meter.once_per
    of_window: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for number, (outcome, bill) in enumerate(bills):
        content = outcome.texts.get(column)
        if content is not None and column != CONTENT:
            raise UnplaceableError(f"{meter.name} counts each {column} once: which outcome is the first is not certain")
        if content is not None and any(line.meter == meter.name and line.own for line in bill.lines):
            window = outcome.event_us // (within_seconds * SECOND_US)
            of_window[outcome.account, content, window].append((outcome.event_us, number))
    for found in of_window.values():
        (first_us, _), *others = sorted(found)
        if any(event_us == first_us for event_us, _ in others):
            raise UnplaceableError(f"two outcomes of a content occur at {first_us} µs")
        yield from (number for _, number in others)


def _without(bill: Bill, meters: set[str]) -> Bill:
    return replace(bill, lines=tuple(line for line in bill.lines if line.meter not in meters))
