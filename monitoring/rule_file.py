"""What an alert and a recording are, and how both become Prometheus's rule file."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

import yaml

RUNBOOK = "runbook.md"
"""Where the runbook is read when nobody says so: beside the rule file."""
_SERIES = re.compile(r"\bweir[_:][a-z_:]+\{?")
_RANGE = re.compile(r"\[(\d+)([smhd])(:?)\]")
_AGE = re.compile(r"(?<=process_start_time_seconds < )\d+")
_QUERY = re.compile(r"query `[^`]+`")
"""PromQL that an annotation asks for itself."""
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Severity(StrEnum):
    """How urgent an alert is."""

    PAGE = "page"
    """A symptom: bills are or become wrong or late. Somebody acts now."""
    TICKET = "ticket"
    """A cause or a loss in small: somebody acts on a working day."""


class Part(StrEnum):
    """A part of Weir that an installation may leave out."""

    INGESTION = "ingestion"
    SESSIONIZATION = "sessionization"
    JOINS = "joins"
    BILLING = "billing"
    ANALYTICS = "analytics"
    AUDIT = "audit"
    """Audits on a schedule."""
    FULL_AUDIT = "full_audit"
    """One of them examines everything."""
    API = "api"
    """What takes events over HTTP."""
    CONNECT = "connect"
    """The Kafka Connect worker that comes with Weir; without it there may be another."""
    DATABASE_DISK = "database_disk"
    """The size of the database's disk is known."""


@dataclass(frozen=True)
class Recording:
    """A series that Prometheus computes, named `level:what:unit`; left out without the parts that it `needs`."""

    name: str
    expr: str
    help: str
    needs: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Alert:
    """One alert. `hold` is how long `expr` must give a result before it fires; annotations are Prometheus templates.

    `needs` are the parts without which it would fire for ever, so the rule is left out. Two rules may have one name.
    `labels` tell them apart.
    """

    name: str
    severity: Severity
    expr: str
    summary: str
    description: str
    hold: timedelta = timedelta(0)
    needs: tuple[Part, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


def rule_file(
    groups: dict[str, tuple[Alert | Recording, ...]],
    scale: float = 1.0,
    *,
    runbook: str = RUNBOOK,
    stack: Mapping[str, str] | None = None,
    disabled: Collection[Part] = (),
) -> str:
    """The rule file, YAML. `scale` multiplies every range, hold and age of a process, and no threshold: a test cannot
    wait for an hour.

    Each alert links to its heading of `runbook`. With the labels `stack` (namespace and release) the rules see only the
    series that have them, and what they give has them too: several stacks under one Prometheus do not hide each other's
    silence. Rules that need a `disabled` part are left out.
    """
    kept = {name: [rule for rule in rules if not set(rule.needs) & set(disabled)] for name, rules in groups.items()}
    content = {
        "groups": [
            {"name": f"weir.{name}", "rules": [_rule(rule, scale, runbook, stack or {}) for rule in rules]}
            for name, rules in kept.items()
            if rules
        ]
    }
    return yaml.safe_dump(content, sort_keys=False, width=4_096)


def chart_rules(groups: dict[str, tuple[Alert | Recording, ...]], runbook: str, stack: Mapping[str, str]) -> str:
    """All rules as JSON, which helm reads faster than YAML. Each has the parts that it `needs`: the chart leaves out
    what needs a disabled one.
    """
    content = [
        {
            "name": f"weir.{name}",
            "rules": [
                {**_rule(rule, 1, runbook, stack), "needs": [part.value for part in rule.needs]} for rule in rules
            ],
        }
        for name, rules in groups.items()
    ]
    return json.dumps({"groups": content}, indent=1) + "\n"


def held_to(expr: str, matcher: str) -> str:
    """`expr` with label matchers, such as `namespace="weir"`, at every one of Weir's series."""
    return _SERIES.sub(
        lambda found: f"{found[0]}{matcher}," if found[0].endswith("{") else f"{found[0]}{{{matcher}}}", expr
    )


def matchers(stack: Mapping[str, str]) -> str:
    """The labels of a stack as PromQL matches them."""
    return ",".join(f'{label}="{value}"' for label, value in stack.items())


def _rule(rule: Alert | Recording, scale: float, runbook: str, stack: Mapping[str, str]) -> dict[str, Any]:
    def of_stack(expr: str) -> str:
        scaled = _RANGE.sub(lambda found: _scaled(found, scale), expr)
        scaled = _AGE.sub(lambda found: f"{int(found[0]) * scale:g}", scaled)
        return held_to(scaled, matchers(stack)) if stack else scaled

    if isinstance(rule, Recording):
        return {"record": rule.name, "expr": of_stack(rule.expr), **({"labels": dict(stack)} if stack else {})}
    link = f"{runbook}#{rule.name.lower()}"
    description = _QUERY.sub(lambda found: of_stack(found[0]), rule.description)
    return {
        "alert": rule.name,
        "expr": of_stack(rule.expr),
        **({"for": _duration(rule.hold.total_seconds() * scale)} if rule.hold else {}),
        "labels": {"severity": rule.severity.value, **rule.labels, **stack},
        "annotations": {"summary": rule.summary, "description": description, "runbook_url": link},
    }


def _scaled(found: re.Match[str], scale: float) -> str:
    number, unit, subquery = found.groups()
    return f"[{_duration(int(number) * _SECONDS[unit] * scale)}{subquery}]"


def _duration(seconds: float) -> str:
    """As Prometheus writes it, in the largest unit that is exact."""
    whole = max(1, round(seconds))
    for unit, size in reversed(_SECONDS.items()):
        if whole % size == 0:
            return f"{whole // size}{unit}"
    raise AssertionError("every whole number of seconds is one of seconds")
