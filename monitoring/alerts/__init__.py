"""Every alert, declared once. Symptoms page, causes open tickets; each has its heading in `runbook.md`."""

from __future__ import annotations

from monitoring.alerts.api import API
from monitoring.alerts.applications import APPLICATIONS
from monitoring.alerts.audits import AUDITS
from monitoring.alerts.events import EVENTS
from monitoring.alerts.freshness import FRESHNESS
from monitoring.alerts.headroom import HEADROOM
from monitoring.alerts.money import MONEY
from monitoring.alerts.sources import SOURCES
from monitoring.alerts.waiting import WAITING
from monitoring.alerts.webhooks import WEBHOOKS
from monitoring.rule_file import Alert, Recording

GROUPS: dict[str, tuple[Alert | Recording, ...]] = {
    "freshness": FRESHNESS,
    "applications": APPLICATIONS,
    "waiting": WAITING,
    "api": API,
    "events": EVENTS,
    "money": MONEY,
    "webhooks": WEBHOOKS,
    "audits": AUDITS,
    "sources": SOURCES,
    "headroom": HEADROOM,
}
ALERTS = tuple(rule for rules in GROUPS.values() for rule in rules if isinstance(rule, Alert))
RECORDINGS = tuple(rule for rules in GROUPS.values() for rule in rules if isinstance(rule, Recording))
