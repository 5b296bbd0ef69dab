"""METRICS.md: every metric in one table."""

from __future__ import annotations

from metering.words import Job
from monitoring.instruments import GaugeMetric, Metric
from monitoring.metrics import METRICS

_HEAD = """# Metrics

Generated from `metrics/` by `python -m monitoring.render`. Each application serves `/metrics` with its own series.
Label values are closed sets; never a user, a request or free text.

| name | kind | unit | labels | exposed by | meaning |
|---|---|---|---|---|---|
"""


def metrics_page() -> str:
    """The table of all metrics, as Markdown."""
    return _HEAD + "".join(_row(metric) for metric in METRICS)


def _row(metric: Metric) -> str:
    labels = "; ".join(f"`{label}`: {_values(values)}" for label, values in metric.labels.items())
    jobs = ", ".join(metric.jobs) if metric.jobs else "every job"
    kind = (
        f"{metric.kind}, of the database" if isinstance(metric, GaugeMetric) and metric.from_database else metric.kind
    )
    return f"| `{metric.name}` | {kind} | {metric.unit} | {labels} | {jobs} | {metric.help} |\n"


def _values(values: tuple[str, ...] | None) -> str:
    if values is None:
        return "given at start"
    return "its own" if values == tuple(Job) else ", ".join(values)
