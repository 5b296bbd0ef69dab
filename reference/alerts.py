"""alerts.md: every alert and every recorded series, as Prometheus gets them."""

from __future__ import annotations

import re
from datetime import timedelta

from monitoring.alerts import GROUPS
from monitoring.rule_file import Alert, Recording
from reference.markdown import cell, code, page, table

RUNBOOK = "../../monitoring/runbook.md"
_LABEL = re.compile(r"\{\{\s*\$labels\.(\w+)\s*\}\}")
_LIST = re.compile(r":\{\{ range .*?\{\{ end \}\}", re.DOTALL)
"""What an annotation lists when it is sent."""
_VALUE = re.compile(r"\{\{\s*\$value[^}]*\}\}")
_INTRODUCTION = f"""
An alert of severity `page` says that bills are wrong or late, or soon will be: act now. A `ticket` is for a working
day. The [runbook]({RUNBOOK}) says what each means, how to look, and what to do.
[Get alerts](../how-to/alerts.md) says how to receive them. A rule that needs a part of Weir is left out where that part
is disabled.
"""


def alerts_page() -> str:
    """The page."""
    rows = [
        (f"[{name}](#{name.lower()})", alert.severity, cell(group), _readable(alert.summary))
        for group, rules in GROUPS.items()
        for name, (alert, *_) in _by_name(rules).items()
    ]
    overview = table(("alert", "severity", "about", "says"), rows)
    sections = [
        f"## {name.capitalize()}\n\n{''.join(_alerts(rules))}{_recordings(rules)}" for name, rules in GROUPS.items()
    ]
    return page("Alerts", "`monitoring/alerts`", _INTRODUCTION, f"{overview}\n{''.join(sections)}")


def _alerts(rules: tuple[Alert | Recording, ...]) -> list[str]:
    return [_alert(name, alerts) for name, alerts in _by_name(rules).items()]


def _by_name(rules: tuple[Alert | Recording, ...]) -> dict[str, list[Alert]]:
    """The alerts of a group: those of one name differ in their labels."""
    found: dict[str, list[Alert]] = {}
    for rule in rules:
        if isinstance(rule, Alert):
            found.setdefault(rule.name, []).append(rule)
    return found


def _alert(name: str, alerts: list[Alert]) -> str:
    first = alerts[0]
    says = dict.fromkeys(_readable(f"{alert.summary}. {alert.description}") for alert in alerts)
    expressions = table(
        ("needs", "fires when", "for"),
        [(", ".join(alert.needs), code(alert.expr), _duration(alert.hold)) for alert in alerts],
    )
    meaning = " ".join(says) if len(says) == 1 else "\n".join(f"- {text}" for text in says)
    return f"### {name}\n\n`{first.severity}` · [runbook]({RUNBOOK}#{name.lower()})\n\n{meaning}\n\n{expressions}\n"


def _recordings(rules: tuple[Alert | Recording, ...]) -> str:
    recordings = [rule for rule in rules if isinstance(rule, Recording)]
    if not recordings:
        return ""
    rows = [(code(rule.name), cell(rule.help), code(rule.expr)) for rule in recordings]
    return f"### Recorded series\n\n{table(('series', 'meaning', 'expression'), rows)}\n"


def _readable(text: str) -> str:
    """An annotation with its templates as words: a label's name, and N for the value."""
    return cell(_VALUE.sub("N", _LABEL.sub(r"`\1`", _LIST.sub("", text))))


def _duration(hold: timedelta) -> str:
    seconds = int(hold.total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s" if seconds else "at once"
