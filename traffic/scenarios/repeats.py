"""What is sent again: a duplicate when it says the same, a conflict when it does not.

That holds as long as an identity is remembered. How long ago the first was received and when the event occurred only
decide where it is looked for: within the exact horizon among all, beyond it among those of the same day.
"""

from __future__ import annotations

from traffic.events import Document
from traffic.instants import rfc3339
from traffic.placement import Lags, Placement
from traffic.scenarios.plain import pair, single
from traffic.script import Script

LONG_AGO = (Lags(7_500_000, 8_700_000), Lags(108_000_000, 109_200_000))
"""Two hours and thirty. Ranges narrower than a session gap, more than one away from all others."""
MAX_BEYOND_MS = 10_000
"""The longest exact horizon that traffic of seconds can get past."""


def exact_duplicate(script: Script) -> None:
    """The same bytes again, at once or some seconds later."""
    _, completion, at_ms = pair(script, script.take(), "normal")
    for _ in range(script.rng.choice((1, 1, 1, 3))):
        at_ms += script.rng.choice((1, 5, script.rng.randint(100, 15_000)))
        script.send(completion, at_ms, "exact_duplicate", "duplicate")


def resent_duplicate(script: Script) -> None:
    """Sent again with another `senttime`, or written in another order: the content is the same."""
    request, _, at_ms = pair(script, script.take(), "normal")
    at_ms += script.rng.randint(100, 15_000)
    again = {**dict(reversed(request.items())), "senttime": rfc3339(at_ms)}
    script.send(again, at_ms, "resent_duplicate", "duplicate")


def conflict(script: Script) -> None:
    """The same identity with other content; the first stands."""
    document, at_ms = single(script, script.take(), "normal")
    script.send(_saying_more(script, document), at_ms + script.rng.randint(1, 15_000), "conflict", "conflict")


def _saying_more(script: Script, document: Document) -> Document:
    tokens = (document["data"]["output_tokens"] or 0) + script.rng.randint(1, 900)
    return {**document, "data": {**document["data"], "output_tokens": tokens}}


def can_be_long_ago(placement: Placement) -> bool:
    """Whether events of hours ago are certain stragglers."""
    return all(placement.is_long_ago(lags) for lags in LONG_AGO)


def of_long_ago(script: Script) -> None:
    """An event that occurred hours ago, and again: beside its first, and some batches later."""
    document, at_ms = _long_ago(script)
    script.send(document, at_ms + script.rng.randint(1, 20), "repeat_of_long_ago", "duplicate")
    script.send(document, at_ms + script.rng.randint(6_000, 15_000), "repeat_of_long_ago", "duplicate")


def can_be_beyond(placement: Placement) -> bool:
    """Whether the exact horizon is over while the traffic goes on."""
    return placement.policy.exact_horizon_seconds * 1000 <= MAX_BEYOND_MS and can_be_long_ago(placement)


def beyond_the_exact_horizon(script: Script) -> None:
    """Again when the first is beyond the exact horizon: the same, or with other content."""
    exact_ms = script.placement.policy.exact_horizon_seconds * 1000
    is_long_ago = script.rng.random() < 0.5
    document, at_ms = _long_ago(script) if is_long_ago else single(script, script.take(), "normal")
    after_ms = at_ms + exact_ms + script.placement.slack_ms // 10 + script.rng.randint(0, 5_000)
    if script.rng.random() < 0.3:
        script.send(_saying_more(script, document), after_ms, "conflict_beyond_horizon", "conflict")
    else:
        script.send(document, after_ms, "repeat_beyond_horizon", "duplicate")


def _long_ago(script: Script) -> tuple[Document, int]:
    lags, start_ms = script.rng.choice(LONG_AGO), script.timeline.start_ms
    call, sent_ms = script.take_between(start_ms - lags.most_ms, start_ms - lags.least_ms)
    return single(script, call, "long_ago", sent_ms)
