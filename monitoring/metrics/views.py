"""Metrics of views: what analytics measures of outcomes, for the keys that a view's `gauges` choose."""

from __future__ import annotations

from metering.vocabulary import Job
from monitoring.instruments import GaugeMetric
from monitoring.metrics.labels import GIVEN_AT_START

VIEW = GaugeMetric(
    "weir_view",
    "as measured",
    "What a view with `gauges` measures in the last five minutes before analytics' frontier, for its first keys by its "
    "first count or sum; percentiles are measures such as latency_ms_p95.",
    {"view": GIVEN_AT_START, "keys": GIVEN_AT_START, "measure": GIVEN_AT_START},
    (Job.ANALYTICS,),
    from_database=True,
)
