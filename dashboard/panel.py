"""A panel: its current data, or, when the source is down, the last data and its age."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import streamlit as st

from dashboard.backend import Backend, NotConnected, Unavailable
from dashboard.freshness import Freshness, State
from dashboard.settings import Settings
from dashboard.sign_in import NotSignedIn, SeesNothing
from dashboard.wording import literal, moment, span

SHARED_FOR_SECONDS = 1.0
"""Viewers share a reading for so long."""

RETRY_SECONDS = 4.0
"""A source that does not answer is not queried more often: its timeout delays the page."""

MAX_REMEMBERED = 256

T = TypeVar("T")
P = ParamSpec("P")

# An icon and a word say the same as the colour does.
_BADGES = {
    State.LIVE: (":material/play_arrow:", "green"),
    State.IDLE: (":material/pause:", "gray"),
    State.STALE: (":material/warning:", "orange"),
    State.NEVER_HAD_DATA: (":material/radio_button_unchecked:", "gray"),
    State.BACKEND_DOWN: (":material/cloud_off:", "red"),
    State.NOT_CONNECTED: (":material/power_off:", "gray"),
}


@dataclass(frozen=True)
class Reading(Generic[T]):
    """`value` as read at `read_at` (this machine's clock); `problem` says why there was no newer one at `asked_at`."""

    value: T | None
    read_at: datetime | None
    asked_at: datetime | None
    problem: Freshness | None = None


class Memory:
    """The last reading per question, arguments, backend and scope: also for one who comes during an outage."""

    def __init__(self) -> None:
        self.is_shared = True
        """Whether viewers share a result for a while; otherwise each queries again."""
        self._readings: OrderedDict[Any, Reading[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, key: Any) -> Reading[Any]:
        """The last reading; an empty one before the first."""
        with self._lock:
            return self._readings.get(key, Reading(None, None, None))

    def keep(self, key: Any, reading: Reading[Any]) -> None:
        """Cache a reading, and drop the oldest one."""
        with self._lock:
            self._readings[key] = reading
            self._readings.move_to_end(key)
            if len(self._readings) > MAX_REMEMBERED:
                self._readings.popitem(last=False)


@st.cache_resource
def memory() -> Memory:
    """What this process remembers for all its viewers."""
    return Memory()


def current_time() -> datetime:
    """The clock of the pages, in one place."""
    return datetime.now(UTC)  # noqa: TID251 -- the one that pages read


def backend() -> Backend:
    """Where this process reads from, and whose rows. Raises NotSignedIn and SeesNothing where viewers sign in."""
    settings = Settings.of(os.environ)
    return Backend(settings.seen_by(st.user.to_dict(), current_time()) if settings.sign_in else settings)


def ask(question: Callable[Concatenate[Backend, P], T], *arguments: P.args, **keywords: P.kwargs) -> Reading[T]:
    """The answer to a question, shared by all viewers who ask the same within a second."""
    return ask_every(SHARED_FOR_SECONDS, question, *arguments, **keywords)


def ask_every(
    seconds: float, question: Callable[Concatenate[Backend, P], T], *arguments: P.args, **keywords: P.kwargs
) -> Reading[T]:
    """As `ask`, for an answer that costs more and changes little: it is read again after `seconds`."""
    try:
        source, now = backend(), current_time()
    except (NotSignedIn, SeesNothing):
        # A panel that refreshes itself: the page says why it is gone.
        st.rerun()
    key = (question.__module__, question.__qualname__, source, arguments, tuple(sorted(keywords.items())))
    last = memory().recall(key)
    patience = max(seconds, RETRY_SECONDS) if last.problem else seconds
    if memory().is_shared and last.asked_at is not None and (now - last.asked_at).total_seconds() < patience:
        return last
    try:
        reading = Reading(question(source, *arguments, **keywords), now, now)
    except NotConnected as missing:
        return Reading(None, None, None, Freshness(State.NOT_CONNECTED, str(missing)))
    except Unavailable as outage:
        reading = Reading(last.value, last.read_at, now, Freshness(State.BACKEND_DOWN, str(outage)))
    memory().keep(key, reading)
    return reading


def head(title: str, reading: Reading[T], freshness_of: Callable[[T], Freshness]) -> T | None:
    """Draw a panel's heading with its state and its age; gives what there is to draw, which may be old or nothing."""
    found = reading.problem or freshness_of(_known(reading.value))
    icon, color = _BADGES[found.state]
    st.markdown(f"#### {literal(title)} &nbsp; :{color}-badge[{icon} {found.state}]")
    if found.state is State.BACKEND_DOWN and reading.read_at is not None:
        age = span(current_time() - reading.read_at)
        kept = f"Last values, read {age} ago at {moment(reading.read_at)}."
        st.caption(f"{found.sentence} :material/history: {kept}")
    else:
        st.caption(found.sentence)
    return reading.value


def _known(value: T | None) -> T:
    assert value is not None, "a reading without a problem has a value"
    return value
