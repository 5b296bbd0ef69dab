"""Which request a completion answers that the stream gave up, pair by pair: the rule in its own words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """A row of one key. `at`: when it was first received; `is_matched`: joins found its partner in time.

    `is_late`: it, or what it was matched with, had no contract when it came.
    """

    lsn: int
    is_request: bool
    at: int
    is_matched: bool = False
    is_late: bool = False


def answered(events: Iterable[Event], reach: int) -> dict[int, int]:
    """By the lsn of a request that was given up that of the completion that answers it, at most `reach` apart."""
    known: list[Event] = []
    pairs: dict[int, int] = {}
    for event in sorted(events, key=lambda event: (event.is_late, event.lsn)):
        taken = {*pairs, *pairs.values()}
        free = [each for each in known if not each.is_matched and each.lsn not in taken]
        both = [(event, each) if event.is_request else (each, event) for each in free if not event.is_matched]
        both = [pair for pair in both if pair[0].is_request != pair[1].is_request and _belongs(*pair, known, reach)]
        best = min(both, key=lambda pair: _distance(*pair), default=None)
        if best is not None:
            pairs[best[0].lsn] = best[1].lsn
        known.append(event)
    return pairs


def _distance(request: Event, completion: Event) -> tuple[bool, int, int]:
    """A completion after its request before one that precedes it; then the nearest; of the same time the later row."""
    precedes = completion.at < request.at
    lsns = request.lsn + completion.lsn
    return precedes, abs(request.at - completion.at), lsns if precedes else -lsns


def _belongs(request: Event, completion: Event, known: list[Event], reach: int) -> bool:
    """Whether the completion may answer the request, next to what was matched by then."""
    if abs(request.at - completion.at) > reach:
        return False
    matched = [each.at for each in known if each.is_matched]
    if request.at <= completion.at:
        return not any(request.at < at < completion.at for at in matched)
    return not any(completion.at - reach <= at <= request.at + reach for at in matched)
