"""Which series a process exposes from its first moment: its program's, counters at 0 with all their label sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from metering.vocabulary import Disposition, Job
from monitoring import metrics
from monitoring.instruments import Metric


def init_labels(program: str, *, reasons: Iterable[str] = (), meters: Iterable[str] = (), version: str = "") -> None:
    """Let this process expose the series of `program` alone, counters and histograms at 0 with all their label sets.

    `program` is a job or the API. `reasons` are those for which events are rejected, `meters` those that are declared.
    Raises ValueError for a program that does not exist.
    """
    if program not in metrics.PROGRAMS:
        raise ValueError(f"{program!r} is none of the programs {', '.join(metrics.PROGRAMS)}")
    reasons, meters = tuple(reasons), tuple(meters)
    for metric in metrics.METRICS:
        if program in (metric.programs or tuple(Job)):
            for labels in label_sets(metric, program, reasons, meters):
                metric.start(**labels)
    if program in tuple(Job):
        metrics.BUILD_INFO.set(1, job=program, version=version)


def label_sets(
    metric: Metric, program: str, reasons: tuple[str, ...], meters: tuple[str, ...]
) -> Iterator[dict[str, str]]:
    """Every combination of label values that `program` may use, but for those only known when it runs."""
    if metric in (metrics.EVENTS, metrics.API_EVENTS):
        label, values = next((label, values) for label, values in metric.labels.items() if label != "reason")
        for value in values or ():
            of_value = reasons if value == Disposition.REJECTED else ("",)
            yield from ({label: value, "reason": reason} for reason in of_value)
    else:
        sets = {label: values or () for label, values in metric.labels.items()}
        if "job" in sets:
            sets["job"] = (program,)
        if "meter" in sets:
            sets["meter"] = meters
        yield from (dict(zip(sets, values, strict=True)) for values in product(*sets.values()))
