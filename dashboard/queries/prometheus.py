"""The HTTP interfaces of Prometheus and Alertmanager. They cover all accounts, so a limited scope may not use them."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime, timedelta
from typing import Any

from dashboard.backend import Backend, NotConnected, Unavailable

TIMEOUT_SECONDS = 3
Samples = list[tuple[float, float]]
"""(Unix time, value), oldest first."""


def prometheus(backend: Backend, path: str, question: dict[str, str] | None = None) -> Any:
    """What Prometheus answers, below `data`."""
    return _get(backend, "Prometheus", backend.settings.prometheus_url, path, question or {})["data"]


def alertmanager(backend: Backend, path: str) -> Any:
    """What Alertmanager answers."""
    return _get(backend, "Alertmanager", backend.settings.alertmanager_url, path, {})


def query_range(
    backend: Backend, query: str, start: datetime, end: datetime, step: timedelta
) -> list[tuple[dict[str, str], Samples]]:
    """(labels, samples) of every series of a query."""
    limits = {"start": start.timestamp(), "end": end.timestamp(), "step": step.total_seconds()}
    question = {"query": query, **{name: f"{value:.0f}" for name, value in limits.items()}}
    found = prometheus(backend, "/api/v1/query_range", question)
    return [
        (series["metric"], [(float(at), float(value)) for at, value in series["values"]]) for series in found["result"]
    ]


def _get(backend: Backend, program: str, root: str, path: str, question: dict[str, str]) -> Any:
    if not backend.scope.is_all:
        raise NotConnected(f"{program} shows all accounts, and this view may see only some.")
    if not root:
        raise NotConnected(
            f"No {program} is connected: `weir up` starts it when `{program.lower()}` is on the PATH "
            f"(Debian: prometheus, prometheus-alertmanager); or set WEIR_{program.upper()}_URL to the address of yours."
        )
    address = f"{root}{path}?{urllib.parse.urlencode(question)}" if question else f"{root}{path}"
    place = urllib.parse.urlsplit(root).netloc.rpartition("@")[2]
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as answer:
            return json.load(answer)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise Unavailable(f"{program} at {place} does not answer.") from error
