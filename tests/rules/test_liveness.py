"""A driver is live while its loop keeps its promise, and metrics are served whether it does or not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from monitoring.liveness import PATH, ROUND_SECONDS, START_SECONDS, Loop, answering

seconds = st.floats(min_value=0, max_value=1e6)


def metrics(_: dict[str, Any], start: Any) -> Iterable[bytes]:
    start("200 OK", [])
    return [b"weir_epoch 1\n"]


def asked(loop: Loop, path: str) -> tuple[str, bytes]:
    said: list[str] = []
    body = answering(loop, metrics)({"PATH_INFO": path}, lambda status, _: said.append(status))
    return said[0], b"".join(body)


@given(now=seconds, later=seconds)
def test_a_loop_is_live_until_its_promise_is_broken(now: float, later: float) -> None:
    loop = Loop()
    loop.expect_round_within(ROUND_SECONDS, now)
    assert loop.is_live(now + later) == (now + later <= now + ROUND_SECONDS)


def test_the_last_promise_counts() -> None:
    loop = Loop()
    loop.expect_round_within(START_SECONDS, 0)
    loop.expect_round_within(ROUND_SECONDS, 10)
    assert loop.is_live(10 + ROUND_SECONDS)
    assert not loop.is_live(START_SECONDS)


def test_a_hanging_loop_is_reported_and_its_metrics_are_still_served() -> None:
    loop = Loop()
    assert asked(loop, PATH)[0] == "200 OK"
    loop.expect_round_within(-1)
    assert asked(loop, PATH)[0] == "503 Service Unavailable"
    assert asked(loop, "/metrics") == ("200 OK", b"weir_epoch 1\n")
