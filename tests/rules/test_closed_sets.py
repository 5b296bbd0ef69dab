"""Every closed set of words has one home. Whatever writes it once more, in code, YAML or a text, is held to it here.

What the database writes once more is held in tests/pipelines/test_closed_sets_stored.py.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Collection, Iterable, Sized
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.__main__ import NEEDS
from bench.report import IDLE_AIMS_MS
from catalog import unit_price
from charts import values as chart
from dashboard import fates, marks
from dashboard.freshness import Health
from dashboard.views import conservation, joins, overview, sessions, windows
from jobs import restart, streams
from jobs.ingestion.conformance import STATUS
from jobs.joins.pairs import SIDES
from jobs.journal import catalog_fields
from jobs.journal.families import EARLIER
from jobs.runtime.errors import ExitStatus
from jobs.runtime.kafka.protocol import log_records
from jobs.runtime.kafka.topic_settings import TopicRisk
from jobs.sessionization.fold import CHANGES
from jobs.stack import Jobs
from jobs.streams import Table
from metering.contracts.keywords import NEEDED
from metering.contracts.page import FAMILIES
from metering.contracts.schema import contracts_of
from metering.contracts.shipped import shipped
from metering.joining import Side
from metering.lateness import WindowState
from metering.meters import DEFAULT, Meter
from metering.reports import STALE, Phase
from metering.sessions import SessionState
from metering.vocabulary import (
    BILLABLE,
    COMPLETIONS,
    CORRECTING,
    OF_REQUESTS,
    REPORTING,
    REQUESTS,
    Cause,
    Decision,
    Disposition,
    End,
    EventType,
    Family,
    Isolation,
    Job,
    LatePolicy,
    Outcome,
    Reason,
    SessionChange,
    Status,
)
from monitoring import metrics
from monitoring.alerts import ALERTS
from tests.dashboard import seeding
from tests.monitoring import healthy, test_alerts
from tests.rules.test_traffic_truth import run
from tests.specifications.clock import Acceptance
from traffic import events as traffic_events
from traffic.meters import METERS as TRAFFIC_METERS
from traffic.truth import truth_of

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "weir"
JOBS = tuple(Job)
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
TRAFFIC_TYPES = (traffic_events.REQUEST, traffic_events.COMPLETION, traffic_events.USAGE)


def independent() -> list[str]:
    return next(c["modules"] for c in CONTRACTS if c["name"] == "The applications never import each other")


def in_chart(file: str, key: str) -> Iterable[str]:
    return yaml.safe_load((CHART / file).read_text())[key]  # type: ignore[no-any-return]  # YAML has no types


def alerts_of_causes() -> list[str]:
    pages = " ".join(alert.expr for alert in ALERTS if alert.name.startswith("Waiting"))
    return re.findall(r'weir_waiting\{cause="(\w+)"\}', pages)


def statuses() -> Iterable[str]:
    """What the contracts that Weir ships allow; the same in each."""
    fields = [field for contract in contracts_of([], shipped()).values() for field in contract.fields]
    (allowed,) = {field.values for field in fields if field.column == STATUS}
    return allowed or ()


COPIES: dict[str, tuple[Iterable[Any], Iterable[Any]]] = {
    "jobs, configuration": (JOBS, Jobs.model_fields),
    "jobs, charts/values": (JOBS, chart.Jobs.model_fields),
    "jobs, values.yaml of the chart": (JOBS, in_chart("values.yaml", "jobs")),
    "jobs, files/jobs.yaml of the chart": (JOBS, in_chart("files/jobs.yaml", "defaults")),
    "jobs, import contract": ([f"jobs.{job}" for job in JOBS], independent()),
    "jobs, folders": (JOBS, [path.parent.name for path in (ROOT / "jobs").glob("*/pipeline.py")]),
    "jobs, pipelines": (JOBS, [importlib.import_module(f"jobs.{job}.pipeline").JOB.name for job in JOBS]),
    "jobs, bench/report": (JOBS, IDLE_AIMS_MS),
    "jobs, bench: what each needs": (JOBS, ["ingestion", *NEEDS]),
    "dispositions, dashboard": (Disposition, conservation._MARKS),
    "outcomes, dashboard": (Outcome, joins._MARKS),
    "outcomes, dashboard: what they mean": (Outcome, joins._MEANINGS),
    "outcomes, dashboard: what became of an event": (Outcome, fates._OUTCOMES),
    "outcomes, healthy series of the alerts' tests": (Outcome, healthy.OUTCOMES_A_MINUTE),
    "decisions, dashboard": (Decision, marks.DECISIONS),
    "decisions, what a policy or a person may say": (Decision, {*LatePolicy, "approve", "reject"}),
    "causes of corrections, dashboard": (CORRECTING, fates.CAUSES),
    "changes of a session, sessionization": (SessionChange, CHANGES),
    "states of a window, dashboard": (WindowState, marks.WINDOWS),
    "states of a session, dashboard": (SessionState, sessions._MARKS),
    "what an application does, dashboard": (
        [*(doing.replace("_", " ") for doing in Phase), STALE, "idle", "never ran"],
        Health,
    ),
    "what an application does, its badges": (Health, overview._BADGES),
    "meters, declared by default": (Meter, [meter.name for meter in DEFAULT]),
    "meters, generated traffic": (Meter, TRAFFIC_METERS),
    "event types, generated traffic": (set(EventType) - {EventType.HEARTBEAT}, TRAFFIC_TYPES),
    "event types of the first release, their families": (EventType, EARLIER),
    "families, of the first types": (set(Family) - {Family.QUANTITY, Family.REVERSAL}, EARLIER.values()),
    "families, all are in an outcome but two": (Family, [*BILLABLE, Family.HEARTBEAT, Family.REVERSAL]),
    "families, sides of a pair": (BILLABLE, SIDES),
    "families, columns that their contracts must fill": (Family, NEEDED),
    "families, docs/reference/contracts.md": (Family, FAMILIES),
    "statuses, shipped contracts": (Status, statuses()),
    "sides of a pair": (Side, set(SIDES.values())),
    "families that begin or end something": (set(REQUESTS) | set(COMPLETIONS), OF_REQUESTS),
    "families that report quantities": ({*COMPLETIONS, Family.QUANTITY}, REPORTING),
    "causes, an alert for each": (Cause, alerts_of_causes()),
    "causes, who waits in the alerts' tests": (Cause, test_alerts.WAITS_FOR),
    "ends, exit statuses": ([*End, "stopped", "bad_configuration"], [status.name.lower() for status in ExitStatus]),
    "ends, of which a pod starts no driver again": (set(ExitStatus) - {ExitStatus.CRASHED}, restart.DECIDED),
    "settings of a topic, monitoring/metrics": (TopicRisk, metrics.TOPIC_SETTINGS),
}


@pytest.mark.parametrize(("home", "copy"), COPIES.values(), ids=COPIES)
def test_a_copy_of_a_closed_set_is_the_set(home: Iterable[Any], copy: Iterable[Any]) -> None:
    assert sorted(copy) == sorted(home)


@pytest.mark.parametrize(
    ("colors", "marks"),
    [
        (conservation.COLORS, conservation._MARKS),
        (joins.COLORS, joins._MARKS),
        (sessions.COLORS, sessions._MARKS),
        (windows.COLORS, marks.WINDOWS),
    ],
)
def test_each_category_of_a_chart_has_its_own_colour(colors: Collection[str], marks: Sized) -> None:
    assert len(set(colors)) == len(colors) == len(marks)


def test_reasons_that_others_give_are_reasons() -> None:
    assert {word.value for word in Acceptance} - {"accepted"} <= set(Reason)
    assert set(Isolation) <= set(Reason)
    assert log_records.TOO_LARGE == Isolation.TOO_LARGE
    assert set(seeding.REASONS) <= set(Reason)
    assert set(healthy.REASONS) <= set(Reason)


def test_generated_traffic_speaks_of_nothing_else() -> None:
    truth = truth_of(run(7, records=2_000))
    assert {record["disposition"] for record in truth["records"]} == set(Disposition)
    assert {record["reason"] for record in truth["records"]} - {None} <= set(Reason)
    assert {outcome["outcome"] for outcome in truth["outcomes"]} == set(Outcome)
    assert {straggler["decision"] for straggler in truth["stragglers"]} <= set(Decision)


QUOTED = r"""\s*(?:=|!=|==|IS DISTINCT FROM)\s*\\?['"](\w+)\\?['"]"""
"""A comparison with one word, in SQL, PromQL or Python."""
WORDS: dict[str, tuple[str, Collection[str]]] = {
    "job": (rf"\bjob{QUOTED}", JOBS),
    "disposition": (rf"\bdisposition{QUOTED}", set(Disposition)),
    "decision": (rf"\bdecision{QUOTED}", set(Decision)),
    # Joins of frames have a `how` too.
    "how a driver ended": (r"""(?:\bhow = '|[{,]how=")(\w+)""", set(End)),
    "reason": (rf"\breason{QUOTED}", set(Reason)),
    "type": (r"\b(ai\.inference\.\w+\.v\d+|source\.heartbeat\.v\d+)\b", {*shipped(), traffic_events.UNKNOWN}),
    "table": (r"\.table\(\"(\w+)\"\)", set(Table)),
}
TEXTS = [
    path
    for folder in (
        "metering",
        "jobs",
        "catalog",
        "deployment",
        "webhooks",
        "api",
        "cli",
        "laptop",
        "traffic",
        "dashboard",
        "monitoring",
        "charts",
        "bench",
        "weir_client",
    )
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".yaml", ".tpl", ".md", ".txt"}
]


@pytest.mark.parametrize(("pattern", "words"), WORDS.values(), ids=WORDS)
def test_each_value_in_a_text_is_a_member_of_its_enum(pattern: str, words: Collection[str]) -> None:
    found = {(word, str(path.relative_to(ROOT))) for path in TEXTS for word in re.findall(pattern, path.read_text())}
    assert {word for word, _ in found}, "the pattern finds nothing any more"
    assert {(word, path) for word, path in found if word not in words} == set()


def test_prices_have_the_same_digits_everywhere() -> None:
    assert streams.UNIT_PRICE.scale == unit_price.DECIMALS
    assert catalog_fields.MAX_UNIT_PRICE == unit_price.LARGEST_PRICE
    assert 10 ** (streams.UNIT_PRICE.precision - streams.UNIT_PRICE.scale) == unit_price.LARGEST_PRICE
