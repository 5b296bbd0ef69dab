"""Writes what is generated from the declarations of this folder: `python -m monitoring.render`."""

from __future__ import annotations

from pathlib import Path

from monitoring.instruments import Metric
from monitoring.metrics import JOBS, METRICS

METRICS_PAGE = Path(__file__).with_name("METRICS.md")

_HEAD = """# Metrics

Generated from `metrics.py` by `python -m monitoring.render`. Each application serves `/metrics` with its own series.
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
    return f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {jobs} | {metric.help} |\n"


def _values(values: tuple[str, ...] | None) -> str:
    if values is None:
        return "given at start"
    return "its own" if values == JOBS else ", ".join(values)


if __name__ == "__main__":
    METRICS_PAGE.write_text(metrics_page(), encoding="utf-8")
