"""Metrics, alerts, panels and runbook are one catalogue: nothing names what does not exist, nothing is unused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.commands import ENTRIES
from metering.vocabulary import Reason
from monitoring import metrics
from monitoring.alerts import ALERTS, GROUPS, RECORDINGS
from monitoring.grafana import dashboard
from monitoring.instruments import HistogramMetric
from monitoring.panels import PANELS
from monitoring.render import rendered
from monitoring.rule_file import Alert, Severity, rule_file

RUNBOOK = (Path(__file__).parents[2] / "monitoring" / "runbook.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
SERIES = {
    name
    for metric in metrics.METRICS
    for name in (
        [f"{metric.name}_{part}" for part in ("bucket", "count", "sum")]
        if isinstance(metric, HistogramMetric)
        else [metric.name]
    )
} | {recording.name for recording in RECORDINGS}
EXPRESSIONS = {
    **{rule.name: rule.expr for rules in GROUPS.values() for rule in rules},
    **{panel.title: " ".join(expr for expr, _ in panel.queries) for panels in PANELS.values() for panel in panels},
}

MATCHERS = r"\b(weir_[a-z_]+)\{([^}]*)\}"
"""A series and what an expression asks of its labels."""

ALERT_NAME = re.compile(r"\b(?:[A-Z][a-z]+){2,}\b")
OF_OTHERS = {"IdempotentWrite", "LogAppendTime", "OpenMeter"}
"""Names in the runbook that are written as alerts are, and are Kafka's and OpenMeter's."""

every_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)


def named_series(expression: str) -> set[str]:
    return set(re.findall(r"\bweir[a-z_:]+", expression))


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS.items())
def test_an_expression_uses_only_series_that_exist(name: str, expression: str) -> None:
    assert named_series(expression)
    assert named_series(expression) <= SERIES


def test_labels_are_found_in_the_expressions_that_ask_for_them() -> None:
    asked = [name for name, expression in EXPRESSIONS.items() if re.search(MATCHERS, expression)]
    assert {"DeadLetters", "DuplicateConflicts", "WaitingForKafka"} <= set(asked)


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS.items())
def test_an_expression_uses_only_labels_and_values_that_exist(name: str, expression: str) -> None:
    by_name = {metric.name: metric for metric in metrics.METRICS}
    for series, matchers in re.findall(MATCHERS, expression):
        metric = by_name.get(series) or by_name[re.sub(r"_(bucket|count|sum)$", "", series)]
        for label, operator, value in re.findall(r"(\w+)(=~|!~|!=|=)[\"']([^\"']*)[\"']", matchers):
            if label == "le":
                assert isinstance(metric, HistogramMetric)
                assert float(value) in metric.buckets
                assert value == str(float(value))
            else:
                # Which reasons a driver counts is known at its start; which there are is not.
                allowed = set(Reason) if label == "reason" and not metric.labels[label] else metric.labels[label]
                values = value.split("|") if operator.endswith("~") else [value]
                assert allowed is None or set(values) <= set(allowed)


def test_every_metric_is_used_by_an_alert_or_a_panel() -> None:
    used = {re.sub(r"_(bucket|count|sum)$", "", name) for text in EXPRESSIONS.values() for name in named_series(text)}
    earlier = {metrics.EARLIER_UNPROPAGATED_DELETIONS.name, metrics.EARLIER_PUBLISHING_BLOCKED.name}
    assert {metric.name for metric in metrics.METRICS} - earlier <= used
    assert not earlier & used, "a former name is for others' dashboards, for one release"


def test_two_alert_rules_of_one_name_differ_in_labels() -> None:
    rules = {(alert.name, *sorted(alert.labels.items())) for alert in ALERTS}
    assert len(rules) == len(ALERTS)
    assert len({alert.name for alert in ALERTS}) >= 14


def test_the_runbook_has_a_heading_for_every_alert_and_no_other() -> None:
    assert set(SECTIONS) == {alert.name for alert in ALERTS}


@every_alert
def test_each_runbook_entry_has_meaning_check_and_action(alert: Alert) -> None:
    section = SECTIONS[alert.name]
    assert re.findall(r"^\*\*(\w+)\*\*", section, re.MULTILINE) == ["Means", "Look", "Do"]
    assert f"**Means** ({alert.severity})" in section


def test_the_runbook_names_only_commands_alerts_and_panels_that_exist() -> None:
    assert set() < set(re.findall(r"`weir ([a-z-]+)", RUNBOOK)) <= {entry.name for entry in ENTRIES}
    named = set(ALERT_NAME.findall(RUNBOOK)) - OF_OTHERS
    assert set() < named <= set(SECTIONS)
    titles = {panel.title for panels in PANELS.values() for panel in panels}
    pages = {"Joins", "Late and dropped", "Sources", "Audit"}
    assert set() < set(re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", RUNBOOK)) <= titles | pages


def test_the_runbook_lists_the_pages_that_are_silent_while_the_database_cannot_be_read() -> None:
    from_database = {metric.name for metric in metrics.METRICS if getattr(metric, "from_database", False)}
    recorded = {recording.name: named_series(recording.expr) for recording in RECORDINGS}
    silent = set[str]()
    for alert in ALERTS:
        read = named_series(alert.expr)
        read = read.union(*(recorded.get(name, set()) for name in read))
        silent |= {alert.name} if alert.severity is Severity.PAGE and read & from_database else set()
    assert set(ALERT_NAME.findall(SECTIONS["DatabaseUnreadable"])) == silent != set()


@every_alert
def test_an_alert_has_a_one_line_summary(alert: Alert) -> None:
    assert 5 < len(alert.summary) <= 80
    assert alert.description.endswith(".")
    assert set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description)) <= {
        "job",
        "reason",
        "setting",
        "meter",
        "outcome",
        "currency",
        "topic",
        "check",
        "audited",
        "slot",
    }


@pytest.mark.parametrize("file", rendered(), ids=lambda file: "/".join(file.parts[-3:]))
def test_rendered_files_are_current(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == rendered()[file], "run: python -m monitoring.render"


def test_scaling_alerts_changes_only_ranges_durations_and_ages_of_processes() -> None:
    full, scaled = rule_file(GROUPS), rule_file(GROUPS, scale=1 / 60)
    assert "[15m]" in full
    assert "[15s]" in scaled
    assert "for: 10s" in scaled  # of 10m
    assert "process_start_time_seconds < 900)" in full
    assert "process_start_time_seconds < 15)" in scaled
    durations = re.compile(r"\[\d+[smhd]|for: \d+[smhd]|process_start_time_seconds < \d+")
    assert durations.sub("", scaled) == durations.sub("", full)


def test_panels_lie_beside_and_below_each_other() -> None:
    places = [panel["gridPos"] for panel in json.loads(dashboard())["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
