"""What a metric is: a declared value that makes its own series in this process's registry when it is first used."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
)

from monitoring.distributions import Distribution, Distributions
from monitoring.liveness import LOOP, answering
from monitoring.metrics_server import MetricsServer

Values = tuple[str, ...] | None
"""The closed set of a label's values; None where a job gives it when it starts (rejection reasons, the version)."""

REGISTRY = CollectorRegistry()
"""The series of this process; its own registry, so that no library adds series of its own."""

_COUNTERS: dict[str, Counter] = {}
_GAUGES: dict[str, Gauge] = {}
_HISTOGRAMS: dict[str, Distributions] = {}


@dataclass(frozen=True)
class Metric:
    """A metric as a value. `name` is what Prometheus stores; `programs` expose it (none: each job)."""

    kind: ClassVar[str]

    name: str
    unit: str
    help: str
    labels: Mapping[str, Values] = field(default_factory=dict, hash=False)
    programs: tuple[str, ...] = ()

    def check(self, labels: Mapping[str, str]) -> None:
        """Raise ValueError for a label or a value outside the declared sets: an open label grows without limit."""
        if labels.keys() != self.labels.keys():
            raise ValueError(f"{self.name} has the labels {sorted(self.labels)}, not {sorted(labels)}")
        for label, value in labels.items():
            allowed = self.labels[label]
            if allowed is not None and value not in allowed:
                raise ValueError(f"{self.name}: {label}={value!r} is none of {', '.join(allowed)}")

    def start(self, **labels: str) -> None:
        """Make the series of these labels exist."""
        raise NotImplementedError


@dataclass(frozen=True)
class CounterMetric(Metric):
    """Counts upwards from 0 since the process started."""

    kind: ClassVar[str] = "counter"

    def inc(self, amount: float = 1, **labels: str) -> None:
        """Add `amount` to the series of these labels."""
        self._series(labels).inc(amount)

    def start(self, **labels: str) -> None:
        """Make the series of these labels exist, at 0."""
        self._series(labels)

    def _series(self, labels: dict[str, str]) -> Counter:
        self.check(labels)
        counter = _COUNTERS.get(self.name)
        if counter is None:
            counter = _COUNTERS[self.name] = Counter(self.name, self.help, tuple(self.labels), registry=REGISTRY)
        return counter.labels(**labels) if labels else counter


@dataclass(frozen=True)
class GaugeMetric(Metric):
    """A value that is read now; absent until it is first known. `from_database`: read there at each scrape."""

    kind: ClassVar[str] = "gauge"

    from_database: bool = False

    def set(self, value: float, **labels: str) -> None:
        """Set the series of these labels."""
        self.check(labels)
        gauge = _GAUGES.get(self.name)
        if gauge is None:
            gauge = _GAUGES[self.name] = Gauge(self.name, self.help, tuple(self.labels), registry=REGISTRY)
        (gauge.labels(**labels) if labels else gauge).set(value)

    def start(self, **labels: str) -> None:
        """Nothing: a gauge that was never set has no value, and 0 would be a false one."""


@dataclass(frozen=True)
class HistogramMetric(Metric):
    """A distribution in the buckets `buckets` (upper bounds, in the metric's unit)."""

    kind: ClassVar[str] = "histogram"

    buckets: tuple[float, ...] = ()

    def observe(self, value: float, **labels: str) -> None:
        """Count `value` in the series of these labels."""
        self._series(labels).add([bisect_left(self.buckets, value)], [1], value)

    def add(self, counts: Sequence[int], total: float, **labels: str) -> None:
        """Count many values at once: how many are in each bucket and above the last, and their sum."""
        self._series(labels).add(range(len(counts)), counts, total)

    def start(self, **labels: str) -> None:
        """Make the series of these labels exist, with every bucket at 0."""
        self._series(labels)

    def _series(self, labels: dict[str, str]) -> Distribution:
        self.check(labels)
        collector = _HISTOGRAMS.get(self.name)
        if collector is None:
            collector = _HISTOGRAMS[self.name] = Distributions(self.name, self.help, tuple(self.labels), self.buckets)
            REGISTRY.register(collector)
        return collector.of(tuple(labels[name] for name in self.labels))


def serve(port: int, address: str = "127.0.0.1", token: str = "") -> int:
    """Serve `/metrics` and `/live` from a daemon thread; port 0 takes a free one. Returns the port.

    With a `token` only who brings it reads `/metrics`. Raises OSError when the port is taken.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client leaves it untyped
    ProcessCollector(registry=REGISTRY)
    application = answering(LOOP, make_wsgi_app(REGISTRY))
    server = MetricsServer(address, port, application, token=token)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server.port
