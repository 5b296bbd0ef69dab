"""The pages of the dashboard, in the order of its sidebar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from dashboard.views import (
    alerts,
    audit,
    bills,
    event,
    invoices,
    joins,
    late,
    models,
    overview,
    runbook,
    sessions,
    sources,
    watch,
    windows,
)


class Page(NamedTuple):
    """What draws a page, its title, and its icon: a name of Material Symbols."""

    show: Callable[[], None]
    title: str
    icon: str


PAGES: Mapping[str, Page] = {
    "overview": Page(overview.show, "Overview", "monitoring"),
    "windows": Page(windows.show, "Live windows", "timer"),
    "sessions": Page(sessions.show, "Sessions", "forum"),
    "late": Page(late.show, "Late and dropped", "history"),
    "joins": Page(joins.show, "Joins", "join_inner"),
    "models": Page(models.show, "Models", "neurology"),
    "watch": Page(watch.show, "Watch", "visibility"),
    "bills": Page(bills.show, "Bills", "receipt_long"),
    "invoices": Page(invoices.show, "Invoices", "request_quote"),
    "event": Page(event.show, "One event", "manage_search"),
    "audit": Page(audit.show, "Audit", "fact_check"),
    "sources": Page(sources.show, "Sources", "sensors"),
    "alerts": Page(alerts.show, "Alerts", "notifications"),
    "runbook": Page(runbook.show, "Runbook", "menu_book"),
}
"""By path in the address. The first is also what the address without a path shows."""
