"""What is sent again: a duplicate when it says the same, a conflict when it does not."""

from __future__ import annotations

from traffic.instants import rfc3339
from traffic.scenarios.plain import pair, single
from traffic.script import Script


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
    tokens = (document["data"]["output_tokens"] or 0) + script.rng.randint(1, 900)
    other = {**document, "data": {**document["data"], "output_tokens": tokens}}
    script.send(other, at_ms + script.rng.randint(1, 15_000), "conflict", "conflict")
