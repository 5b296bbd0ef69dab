"""A panel's data: read now, or, when the database is down, what was read last and how old it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import psycopg
import streamlit as st

from dashboard.freshness import span

URL_VARIABLE = "WEIR_POSTGRES_URL"
SHARED_FOR_SECONDS = 1.0
"""Viewers within a second share one reading."""

T = TypeVar("T")


@dataclass(frozen=True)
class Reading(Generic[T]):
    """`value` as read at `read_at` (this machine's clock); `problem` says why there is no newer one."""

    value: T | None
    read_at: datetime | None
    problem: str | None = None


@st.cache_resource
def _last_readings() -> dict[str, Reading[Any]]:
    """The last good reading per question and database, for all viewers: also one who comes during an outage."""
    return {}


def read(question: Callable[[str], T], now: datetime) -> Reading[T]:
    """The answer to `question`, which is asked of the database that the environment names."""
    url = os.environ.get(URL_VARIABLE, "")
    if not url:
        return Reading(None, None, f"{URL_VARIABLE} is not set: start the dashboard with `weir up`, or set it.")
    key = f"{question.__name__} {url}"
    last = _last_readings().get(key, Reading(None, None))
    if last.read_at is not None and (now - last.read_at).total_seconds() < SHARED_FOR_SECONDS:
        return last
    try:
        reading = Reading(question(url), now)
    except psycopg.Error as error:
        return Reading(last.value, last.read_at, _sentence(error, url))
    _last_readings()[key] = reading
    return reading


def say_how_old(reading: Reading[Any], now: datetime) -> None:
    """One line on the age of what the panel shows; a warning when it cannot be renewed."""
    if reading.problem is None and reading.read_at is not None:
        st.caption(f":material/check: Read {reading.read_at:%H:%M:%S} UTC")
        return
    st.error(f"**Backend down.** {reading.problem}", icon=":material/cloud_off:")
    if reading.read_at is not None:
        st.caption(
            f":material/history: Last values, read {span(now - reading.read_at)} ago at {reading.read_at:%H:%M:%S} UTC"
        )


def current_time() -> datetime:
    """The clock of the pages, in one place."""
    return datetime.now(UTC)


def _sentence(error: psycopg.Error, url: str) -> str:
    """What is wrong, without the user or the password that stand in the address."""
    address = urlsplit(url)
    database = f"{address.hostname or 'localhost'}:{address.port or 5432}{address.path}"
    if isinstance(error, psycopg.OperationalError):
        return f"The database {database} does not answer."
    return f"The database {database} cannot be read: {type(error).__name__}."
