"""Metrics of every driver."""

from __future__ import annotations

from metering.vocabulary import Cause, End
from monitoring.instruments import CounterMetric, GaugeMetric, HistogramMetric
from monitoring.metrics.labels import GIVEN_AT_START, JOB

LAG_RECORDS = GaugeMetric("weir_lag_records", "records", "Input records that the job has not yet committed.", JOB)
LAG_SECONDS = GaugeMetric(
    "weir_lag_seconds",
    "seconds",
    "Age of the oldest input record that the job has not yet committed; 0 without one.",
    JOB,
)
CATCH_UP = GaugeMetric(
    "weir_catch_up_seconds",
    "seconds",
    "Seconds until the job has caught up, if job and input go on as in the last minutes; +Inf: never.",
    JOB,
)
FRONTIER = GaugeMetric(
    "weir_frontier_timestamp_seconds",
    "seconds",
    "The frontier (watermark) that the job has reached: all that was received before it is committed. Unix time.",
    JOB,
)
LAST_PROGRESS = GaugeMetric(
    "weir_last_progress_timestamp_seconds",
    "seconds",
    "When the job last started, finished a batch or moved its frontier. Unix time.",
    JOB,
)
LAST_REPORT = GaugeMetric(
    "weir_last_report_timestamp_seconds",
    "seconds",
    "When the job last looked at its lag, or tried again what it waits for. Unix time.",
    JOB,
)
WAITING_FOR = GaugeMetric(
    "weir_waiting",
    "",
    "1 while the job waits for this cause, else 0. It keeps running and tries again by itself.",
    {**JOB, "cause": tuple(Cause)},
)
EPOCH = GaugeMetric("weir_epoch", "epochs", "The job's fencing epoch: one more at each start.", JOB)
RESTARTS = GaugeMetric(
    "weir_restarts",
    "restarts",
    "How often the job was started again since its first start; kept with its epoch in the database.",
    JOB,
)
EXITED = GaugeMetric(
    "weir_driver_exits",
    "exits",
    "How often a driver of the job ended by itself: crashed, refused a batch, or fenced by a newer epoch.",
    {**JOB, "how": tuple(End)},
    from_database=True,
)
DATABASE_READABLE = GaugeMetric(
    "weir_database_readable", "", "1 when the job could read its gauges from the database just now, else 0.", JOB
)
BUILD_INFO = GaugeMetric(
    "weir_build_info", "", "Always 1; the labels say what runs.", {**JOB, "version": GIVEN_AT_START}
)
BATCH_DURATION = HistogramMetric(
    "weir_batch_duration_seconds",
    "seconds",
    "Time from the start of a micro-batch to its commit in the sink.",
    JOB,
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 13, 20, 30, 60, 120, 300),
)
BATCH_RECORDS = CounterMetric("weir_batch_records_total", "records", "Input records that the job committed.", JOB)
