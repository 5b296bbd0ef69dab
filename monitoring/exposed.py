"""Which series a process exposes from its first moment: those of its job, counters at 0 with all their label sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from metering.vocabulary import Disposition, Job
from monitoring import metrics
from monitoring.instruments import Metric


def init_labels(job: str, *, reasons: Iterable[str] = (), meters: Iterable[str] = (), version: str = "") -> None:
    """Let this process expose the series of `job` alone, its counters and histograms at 0 with all their label sets.

    `reasons` are the reasons for which ingestion rejects, `meters` those that are declared. Raises ValueError for a job
    that does not exist.
    """
    if job not in tuple(Job):
        raise ValueError(f"{job!r} is none of the jobs {', '.join(Job)}")
    reasons, meters = tuple(reasons), tuple(meters)
    for metric in metrics.METRICS:
        if job in (metric.jobs or tuple(Job)):
            for labels in label_sets(metric, job, reasons, meters):
                metric.start(**labels)
    metrics.BUILD_INFO.set(1, job=job, version=version)


def label_sets(metric: Metric, job: str, reasons: tuple[str, ...], meters: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Every combination of label values that `job` may use for `metric`, but for those only known when it runs."""
    if metric is metrics.EVENTS:
        yield from ({"disposition": kept, "reason": ""} for kept in Disposition if kept != Disposition.REJECTED)
        yield from ({"disposition": Disposition.REJECTED, "reason": reason} for reason in reasons)
    else:
        sets = {label: values or () for label, values in metric.labels.items()}
        if "job" in sets:
            sets["job"] = (job,)
        if "meter" in sets:
            sets["meter"] = meters
        yield from (dict(zip(sets, values, strict=True)) for values in product(*sets.values()))
