"""metrics.md: every metric of each application, and the alerts that ask for it."""

from __future__ import annotations

import re

from metering.vocabulary import Job
from monitoring.alerts import ALERTS, RECORDINGS
from monitoring.instruments import GaugeMetric, HistogramMetric, Metric
from monitoring.metrics import API, METRICS, PROGRAMS
from reference.markdown import cell, code, page, table

_SERIES = re.compile(r"\bweir[a-z_:]+")
_INTRODUCTION = """
Each application, and the API, serves `/metrics` with its own series on a port of its own. The values of a label are a
closed set: never a user, a request or free text. Totals *of the database* are read from Postgres when they are scraped,
so they survive a restart.
"""


def metrics_page() -> str:
    """The page."""
    used = _alerts_by_series()
    groups = {"Of every application": [metric for metric in METRICS if not metric.programs]}
    for program in PROGRAMS:
        title = "Of the API" if program == API else f"Of {program}"
        groups[title] = [metric for metric in METRICS if metric.programs[:1] == (program,)]
    sections = [
        f"## {title}\n\n"
        + table(("metric", "kind", "unit", "labels", "meaning", "alerts"), [_row(metric, used) for metric in metrics])
        for title, metrics in groups.items()
    ]
    return page("Metrics", "`monitoring/metrics`", _INTRODUCTION, "\n".join(sections))


def _row(metric: Metric, used: dict[str, list[str]]) -> tuple[str, ...]:
    stored = isinstance(metric, GaugeMetric) and metric.from_database
    names = [f"{metric.name}_bucket"] if isinstance(metric, HistogramMetric) else [metric.name]
    alerts = dict.fromkeys(alert for name in names for alert in used.get(name, ()))
    return (
        code(metric.name),
        f"{metric.kind}, of the database" if stored else metric.kind,
        cell(metric.unit),
        "; ".join(f"{code(label)}: {cell(_values(values))}" for label, values in metric.labels.items()),
        cell(metric.help),
        ", ".join(f"[{alert}](alerts.md#{alert.lower()})" for alert in alerts),
    )


def _values(values: tuple[str, ...] | None) -> str:
    if values is None:
        return "given at start"
    return "its own" if values == tuple(Job) else ", ".join(values)


def _alerts_by_series() -> dict[str, list[str]]:
    """The names of the alerts that ask for a series, themselves or through what Prometheus records of it."""
    recorded = {recording.name: set(_SERIES.findall(recording.expr)) for recording in RECORDINGS}
    used: dict[str, list[str]] = {}
    for alert in ALERTS:
        queried = set(_SERIES.findall(alert.expr))
        while further := set().union(*(recorded.get(name, set()) for name in queried)) - queried:
            queried |= further
        for name in sorted(queried):
            used.setdefault(name, []).append(alert.name)
    return used
