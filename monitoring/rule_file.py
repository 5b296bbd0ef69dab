"""What an alert and a recording are, and how both become Prometheus's rule file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

import yaml

RUNBOOK = "runbook.md"
"""Where the runbook is read when nobody says so: beside the rule file."""
_SERIES = re.compile(r"\bweir[_:][a-z_:]+\{?")
_RANGE = re.compile(r"\[(\d+)([smhd])(:?)\]")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Severity(StrEnum):
    """How urgent an alert is."""

    PAGE = "page"
    """A symptom: bills are or become wrong or late. Somebody acts now."""
    TICKET = "ticket"
    """A cause or a loss in small: somebody acts on a working day."""


@dataclass(frozen=True)
class Recording:
    """A series that Prometheus computes, named `level:what:unit`."""

    name: str
    expr: str
    help: str


@dataclass(frozen=True)
class Alert:
    """One alert. `hold` is how long `expr` must give a result before it fires; annotations are Prometheus templates."""

    name: str
    severity: Severity
    expr: str
    summary: str
    description: str
    hold: timedelta = timedelta(0)


def rule_file(
    groups: dict[str, tuple[Alert | Recording, ...]],
    scale: float = 1.0,
    *,
    runbook: str = RUNBOOK,
    namespace: str | None = None,
) -> str:
    """The rule file. `scale` multiplies every range and hold, and no threshold: a test cannot wait for an hour.

    Each alert links to its heading of `runbook`. With `namespace` the rules see only the series that have this label,
    and what they give has it too: several stacks under one Prometheus do not hide each other's silence.
    """
    content = {
        "groups": [
            {"name": f"weir.{name}", "rules": [_rule(rule, scale, runbook, namespace) for rule in rules]}
            for name, rules in groups.items()
        ]
    }
    return yaml.safe_dump(content, sort_keys=False, width=4_096)


def held_to(expr: str, matcher: str) -> str:
    """`expr` with a label matcher, such as `namespace="weir"`, at every one of Weir's series."""
    return _SERIES.sub(
        lambda found: f"{found[0]}{matcher}," if found[0].endswith("{") else f"{found[0]}{{{matcher}}}", expr
    )


def _rule(rule: Alert | Recording, scale: float, runbook: str, namespace: str | None) -> dict[str, Any]:
    expr = _RANGE.sub(lambda found: _scaled(found, scale), rule.expr)
    labels = {} if namespace is None else {"namespace": namespace}
    if namespace is not None:
        expr = held_to(expr, f'namespace="{namespace}"')
    if isinstance(rule, Recording):
        return {"record": rule.name, "expr": expr, **({"labels": labels} if labels else {})}
    link = f"{runbook}#{rule.name.lower()}"
    return {
        "alert": rule.name,
        "expr": expr,
        **({"for": _duration(rule.hold.total_seconds() * scale)} if rule.hold else {}),
        "labels": {"severity": rule.severity.value, **labels},
        "annotations": {"summary": rule.summary, "description": rule.description, "runbook_url": link},
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
