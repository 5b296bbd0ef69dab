"""Histograms that take a whole batch's counts at once: a value at a time would cost more than the batch."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector


class Distribution:
    """How many values fell into each bucket (the last: above all bounds), and their sum."""

    def __init__(self, buckets: int) -> None:
        self._counts = [0] * (buckets + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def add(self, buckets: Iterable[int], counts: Iterable[int], total: float) -> None:
        """Add `counts` values to `buckets` (indices), and their sum."""
        with self._lock:
            for bucket, count in zip(buckets, counts, strict=True):
                self._counts[bucket] += count
            self._sum += total

    def read(self) -> tuple[list[int], float]:
        """Values up to each bound, cumulated, and the sum."""
        with self._lock:
            return list(accumulate(self._counts)), self._sum


class Distributions(Collector):
    """The series of one histogram, by label values."""

    def __init__(self, name: str, documentation: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._bounds = bounds
        self._series: dict[tuple[str, ...], Distribution] = {}

    def of(self, values: tuple[str, ...]) -> Distribution:
        """The series of these label values; begins at 0."""
        return self._series.setdefault(values, Distribution(len(self._bounds)))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What a scrape sees."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, series in list(self._series.items()):
            counts, total = series.read()
            bounds = [*(_text(bound) for bound in self._bounds), "+Inf"]
            family.add_metric(values, list(zip(bounds, map(float, counts), strict=True)), total)
        yield family


def _text(bound: float) -> str:
    # As every Prometheus client writes it: 1 is "1.0", so that queries find the bucket.
    return repr(float(bound))
