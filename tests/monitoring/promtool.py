"""Runs promtool on rules and series that a test declares. Series are a value a minute, in promtool's notation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from monitoring.alerts import GROUPS
from monitoring.alerts.headroom import DATABASE_GIB
from monitoring.rule_file import RUNBOOK, Alert, Part, Recording, rule_file

Series = dict[str, str]
"""A series and its values: `0+10x60` is 0, 10, 20, … 600; `_x5` is nothing for five minutes; `stale` ends it."""


@dataclass(frozen=True)
class Firing:
    """The alerts of one name that fire at `minute`, by their labels beside name and severity."""

    alert: str
    minute: float
    labels: tuple[dict[str, str], ...] = field(default=({},))


def promtool() -> str:
    """Its path. Only a laptop may lack it; there the test is skipped."""
    found = shutil.which("promtool")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("promtool is missing; the package prometheus has it")
        pytest.skip("promtool is not on the PATH; the package prometheus has it")
    return found


def check(
    folder: Path,
    series: Series,
    expected: list[Firing],
    severities: dict[str, str],
    *,
    stacks: Sequence[Mapping[str, str]] = ({},),
    disabled: Collection[Part] = (),
    minutes: float = 1,
) -> None:
    """Fail with promtool's report unless exactly the expected alerts fire, each at its minute.

    The rules are there once for each of `stacks`, with its labels. What nobody expects anything of is not computed.
    A value of a series stands for so many `minutes`. The database's disk has 10 GiB.
    """
    groups = _rules_of({firing.alert for firing in expected})
    files = {
        f"{number}.rules.yaml": rule_file(groups, stack=stack, disabled=disabled) for number, stack in enumerate(stacks)
    }
    for file_name, rules in files.items():
        (folder / file_name).write_text(rules.replace(DATABASE_GIB, "10"))
    tests = []
    for minute in sorted({firing.minute for firing in expected}):
        there = [firing for firing in expected if firing.minute == minute]
        names = "|".join(sorted({firing.alert for firing in there}))
        samples = [
            {"labels": _labels(firing.alert, severities[firing.alert], labels), "value": 1}
            for firing in there
            for labels in firing.labels
        ]
        expression = f'ALERTS{{alertname=~"{names}",alertstate="firing"}}'
        tests.append({"expr": expression, "eval_time": f"{round(minute * 60)}s", "exp_samples": samples})
    _run(folder, list(files), series, {"promql_expr_test": tests}, minutes)


def check_description(folder: Path, series: Series, alert: str, minute: float, description: str) -> None:
    """Fail unless at `minute` one alert of this name fires for release `weir` in `metering`, with this description."""
    stack = {"namespace": "metering", "release": "weir"}
    (rule,) = (rule for rules in GROUPS.values() for rule in rules if rule.name == alert and isinstance(rule, Alert))
    (folder / "rules.yaml").write_text(rule_file(_rules_of({alert}), stack=stack))
    annotations = {"summary": rule.summary, "description": description, "runbook_url": f"{RUNBOOK}#{alert.lower()}"}
    expected = {"exp_labels": {"severity": rule.severity.value, **stack}, "exp_annotations": annotations}
    test = {"eval_time": f"{round(minute * 60)}s", "alertname": alert, "exp_alerts": [expected]}
    _run(folder, ["rules.yaml"], series, {"alert_rule_test": [test]}, 1)


def _run(folder: Path, rules: list[str], series: Series, tests: dict[str, Any], minutes: float) -> None:
    content = {
        "rule_files": rules,
        "evaluation_interval": f"{round(15 * minutes)}s",
        "tests": [
            {
                "interval": f"{round(60 * minutes)}s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                **tests,
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(json.dumps(content))  # which is YAML, too, and written in a hundredth of the time
    ran = subprocess.run([promtool(), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"


def _rules_of(alerts: set[str]) -> dict[str, tuple[Alert | Recording, ...]]:
    """The groups with these alerts, and with all that is recorded."""
    needed = {
        name: tuple(rule for rule in rules if isinstance(rule, Recording) or rule.name in alerts)
        for name, rules in GROUPS.items()
    }
    return {name: rules for name, rules in needed.items() if rules}


def _labels(alert: str, severity: str, labels: dict[str, str]) -> str:
    named = {"alertname": alert, "alertstate": "firing", "severity": severity, **labels}
    return "ALERTS{" + ", ".join(f'{name}="{value}"' for name, value in sorted(named.items())) + "}"
