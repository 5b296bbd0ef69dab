"""Which request a completion answers that the stream gave up, pair by pair: the rule in its own words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """A row of one key. `at`: when it was first received; `is_matched`: joins found its partner in time.

    `is_late`: it, or what it was matched with, had no contract when it came. `received`, `occurred`, `identity`: when
    it came, when it happened, and which event it is.
    """

    lsn: int
    is_request: bool
    at: int
    is_matched: bool = False
    is_late: bool = False
    received: int = 0
    occurred: int = 0
    identity: bytes = b""


def answered(events: Iterable[Event], reach: int) -> dict[int, int]:
    """By the lsn of a request that was given up that of the completion that answers it, at most `reach` apart."""
    known: list[Event] = []
    pairs: dict[int, int] = {}
    for event in sorted(events, key=_arrival):
        taken = {*pairs, *pairs.values()}
        free = [each for each in known if not each.is_matched and each.lsn not in taken]
        both = [(event, each) if event.is_request else (each, event) for each in free if not event.is_matched]
        both = [pair for pair in both if pair[0].is_request != pair[1].is_request and _belongs(*pair, known, reach)]
        best = _nearest(both)
        if best is not None:
            pairs[best[0].lsn] = best[1].lsn
        known.append(event)
    return pairs


def _arrival(event: Event) -> tuple[bool, int, int, int, bytes, bool, int]:
    """What was received together is in no order of its own."""
    moment = event.at, event.occurred, event.identity
    return event.is_late, event.received, *moment, not event.is_request, event.lsn


def _precedes(request: Event, completion: Event) -> bool:
    """Whether the completion came before its request: of one instant, if that occurred later."""
    return (completion.at, completion.occurred) < (request.at, request.occurred)


def _nearest(pairs: list[tuple[Event, Event]]) -> tuple[Event, Event] | None:
    """A completion after its request before one that precedes it; then the nearest."""
    behind = [pair for pair in pairs if not _precedes(*pair)]
    ahead = [pair for pair in pairs if _precedes(*pair)]

    def distance(pair: tuple[Event, Event]) -> tuple[int, int, int, int]:
        """From the earlier to the later one; of the same moment and identity, the later row."""
        precedes, lsns = _precedes(*pair), sum(event.lsn for event in pair)
        first, last = reversed(pair) if precedes else pair
        name = int.from_bytes(last.identity) - int.from_bytes(first.identity)
        return last.at - first.at, last.occurred - first.occurred, name, lsns if precedes else -lsns

    return min(behind or ahead, key=distance, default=None)


def _belongs(request: Event, completion: Event, known: list[Event], reach: int) -> bool:
    """Whether the completion may answer the request, next to what was matched by then."""
    if abs(request.at - completion.at) > reach:
        return False
    matched = [each.at for each in known if each.is_matched]
    if not _precedes(request, completion):
        return not any(request.at < at < completion.at for at in matched)
    return not any(completion.at - reach <= at <= request.at + reach for at in matched)
