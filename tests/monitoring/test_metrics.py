"""Declared metrics: their names, their closed label sets, and what a process exposes. No engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from metering.vocabulary import Job
from monitoring import metrics
from monitoring.exposed import init_labels
from monitoring.instruments import HistogramMetric, Metric, serve

ROOT = Path(__file__).parents[2]

every_metric = pytest.mark.parametrize("metric", metrics.METRICS, ids=lambda metric: metric.name)


@every_metric
def test_a_name_follows_the_naming_rules_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"weir(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    if metric.unit == "seconds":
        assert metric.name.endswith("_seconds")
    assert metric.help.endswith(".")


@every_metric
def test_no_metric_has_a_customer_or_request_as_label(metric: Metric) -> None:
    open_labels = {label for label, values in metric.labels.items() if values is metrics.GIVEN_AT_START}
    # Event types are what senders write, but only 20 of them are ever shown.
    # A view declares how many of its keys are shown, none of them an account or a user: at most 2,000 series in all.
    # At most 50 meters are declared, and a server has at most max_replication_slots (10) slots.
    of_one: dict[Metric, set[str]] = {
        metrics.UNKNOWN_TYPES: {"type"},
        metrics.SLOT_RETAINED: {"slot"},
        metrics.SLOT_SAFE: {"slot"},
        metrics.VIEW: {"view", "keys", "measure"},
        # Ingestion reads 20 topics of events at most.
        metrics.HEARTBEATS_FAILED: {"topic"},
        metrics.TOPIC_AT_RISK: {"topic"},
        metrics.RETENTION_HEADROOM: {"topic"},
        metrics.READ_UNTIL: {"topic"},
        metrics.RETENTION: {"topic"},
        metrics.TOPIC_UNREAD: {"topic"},
        metrics.TOPIC_FRONTIER: {"topic"},
    }
    assert open_labels <= {"reason", "version", "currency", "meter"} | of_one.get(metric, set())
    assert not metric.labels.keys() & {"account", "user", "user_id", "request_id", "source", "model"}


def test_names_are_unique() -> None:
    assert len({metric.name for metric in metrics.METRICS}) == len(metrics.METRICS)


def test_buckets_grow() -> None:
    histograms = [metric for metric in metrics.METRICS if isinstance(metric, HistogramMetric)]
    assert histograms
    for metric in histograms:
        assert metric.buckets
        assert list(metric.buckets) == sorted(set(metric.buckets))


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (lambda: metrics.OUTCOMES.inc(outcome="lost"), "outcome='lost' is none of matched"),
        (metrics.OUTCOMES.inc, "has the labels"),
        (lambda: metrics.LAG_RECORDS.set(1, job="nobody"), "is none of ingestion"),
        (lambda: init_labels("nobody"), "none of the programs"),
    ],
)
def test_a_label_outside_the_declared_set_is_refused(use: Callable[[], None], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        use()


def exposed(script: str) -> dict[str, float]:
    """The series that a fresh process shows after `script`: a registry is one per process."""
    code = (
        "import json\nfrom prometheus_client import generate_latest\nfrom monitoring import metrics\n"
        "from monitoring.exposed import init_labels\nfrom monitoring.instruments import REGISTRY\n"
        f"{script}\nprint(json.dumps(generate_latest(REGISTRY).decode()))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = json.loads(shown.stdout).splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[0] != "#"}


@pytest.mark.parametrize("job", Job)
def test_a_process_exposes_its_own_job_only_with_counters_at_zero(job: str) -> None:
    series = exposed(f"init_labels({str(job)!r}, reasons=['too_old'], meters=['gpu_seconds'], version='1')")

    assert set(re.findall(r'job="(\w+)"', " ".join(series))) == {job}
    assert series.pop(f'weir_build_info{{job="{job}",version="1"}}') == 1
    counters = {name for name in series if "_total" in name}
    assert f'weir_batch_records_total{{job="{job}"}}' in counters
    assert all(series[name] == 0 for name in counters)
    assert ('weir_events_total{disposition="rejected",reason="too_old"}' in series) == (job == "ingestion")
    assert ('weir_unpriced_usage_rows_total{meter="gpu_seconds"}' in series) == (job == "billing")
    assert ("weir_absent_offsets_total" in series) == (job == "ingestion")


def test_the_api_exposes_its_own_series_only_with_counters_at_zero() -> None:
    shown = exposed("init_labels('api', reasons=['too_large'])")
    series = {name: value for name, value in shown.items() if "_created" not in name}
    assert {name.partition("{")[0] for name in series if "_bucket" not in name} == {
        "weir_api_requests_total",
        "weir_api_request_duration_seconds_count",
        "weir_api_request_duration_seconds_sum",
        "weir_api_events_total",
        "weir_api_refused_requests_total",
    }
    assert set(series.values()) == {0}
    assert 'weir_api_events_total{reason="",result="accepted"}' in series
    assert 'weir_api_events_total{reason="too_large",result="rejected"}' in series


def test_a_gauge_shows_nothing_before_it_is_known() -> None:
    assert not [name for name in exposed("init_labels('joins')") if "lag" in name or "waiting" in name]
    assert exposed("metrics.WAITING.set(3)") == {"weir_join_waiting_records": 3}


def test_served_series_can_be_scraped_at_the_returned_port() -> None:
    init_labels("billing", version="test")
    metrics.STRAGGLERS.inc(2, meter="requests", decision="drop")
    metrics.BATCH_DURATION.observe(0.3, job="billing")

    with urlopen(f"http://127.0.0.1:{serve(0)}/metrics") as answer:
        page = answer.read().decode()

    assert 'weir_stragglers_total{decision="drop",meter="requests"} 2.0' in page
    assert 'weir_batch_duration_seconds_count{job="billing"} 1.0' in page
    assert "_created" not in page
    # By it alerts know what this process counted before it was scraped.
    assert "\nprocess_start_time_seconds " in page


def test_a_histogram_takes_a_whole_batch_as_it_takes_single_values() -> None:
    one_by_one = exposed("for s in (0, 0, 0.5, 60, 61, 9e9): metrics.LATENESS.observe(s)")
    at_once = exposed("metrics.LATENESS.add([2, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1], 9000000121.5)")

    assert one_by_one == at_once
    assert at_once['weir_event_lateness_seconds_bucket{le="0.0"}'] == 2
    assert at_once['weir_event_lateness_seconds_bucket{le="60.0"}'] == 4
    assert at_once["weir_event_lateness_seconds_count"] == 6
