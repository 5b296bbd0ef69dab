"""Weir's alerts: firing (Alertmanager), pending and past ones (Prometheus).

Both may serve a whole cluster, so alerts of other applications, and of another release of Weir, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dashboard.backend import Backend
from dashboard.queries.prometheus import alertmanager, prometheus, query_range
from monitoring.alerts import ALERTS

STEP = timedelta(seconds=30)
"""Resolution of the history: about the rules' own interval."""
NAMES = frozenset(alert.name for alert in ALERTS)


@dataclass(frozen=True)
class Alert:
    """An alert that is firing, pending or suppressed. `labels` are those beyond its name and severity."""

    name: str
    state: str
    severity: str
    summary: str
    description: str
    runbook_url: str
    since: datetime
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Episode:
    """From when to when an alert fired; `end` is None while it does."""

    name: str
    severity: str
    labels: tuple[tuple[str, str], ...]
    start: datetime
    end: datetime | None


def read_firing(backend: Backend) -> tuple[Alert, ...]:
    """What Alertmanager holds now, the most severe and then the oldest first."""
    found = alertmanager(backend, "/api/v2/alerts")
    states = {"active": "firing", "suppressed": "suppressed", "unprocessed": "firing"}
    alerts = [
        _alert(alert["labels"], alert["annotations"], states[alert["status"]["state"]], alert["startsAt"])
        for alert in found
        if _is_ours(backend, alert["labels"])
    ]
    return tuple(sorted(alerts, key=lambda alert: (alert.severity != "page", alert.since, alert.name)))


def read_rules(backend: Backend) -> int:
    """For how many of Weir's alerts Prometheus has rules; where it loads none nothing can fire."""
    found = prometheus(backend, "/api/v1/rules", {"type": "alert"})
    rules = [rule for group in found["groups"] for rule in group["rules"]]
    named = [(rule["name"], rule.get("labels") or {}) for rule in rules]
    return len({name for name, labels in named if _is_ours(backend, {**labels, "alertname": name})})


def read_pending(backend: Backend) -> tuple[Alert, ...]:
    """Alerts whose condition holds, but not for long enough to fire."""
    found = prometheus(backend, "/api/v1/alerts")
    return tuple(
        _alert(alert["labels"], alert["annotations"], "pending", alert["activeAt"])
        for alert in found["alerts"]
        if alert["state"] == "pending" and _is_ours(backend, alert["labels"])
    )


def read_history(backend: Backend, now: datetime, hours: int) -> tuple[Episode, ...]:
    """When alerts fired in the last hours, the latest first; as finely as STEP."""
    # Prometheus answers at most 11,000 steps for a series.
    step = max(STEP, timedelta(hours=hours) / 5_000)
    query = f'ALERTS{{alertstate="firing",alertname=~"{"|".join(sorted(NAMES))}"}}'
    found = query_range(backend, query, now - timedelta(hours=hours), now, step)
    episodes = [
        episode
        for labels, samples in found
        if _is_ours(backend, labels)
        for episode in _episodes(labels, [at for at, _ in samples], step, now)
    ]
    return tuple(sorted(episodes, key=lambda episode: episode.start, reverse=True))


def _is_ours(backend: Backend, labels: dict[str, str]) -> bool:
    return labels["alertname"] in NAMES and backend.settings.stack.items() <= labels.items()


def _episodes(labels: dict[str, str], instants: list[float], step: timedelta, now: datetime) -> list[Episode]:
    """Runs of samples with no step missing between them."""
    runs: list[list[float]] = []
    for at in instants:
        if runs and at - runs[-1][1] <= 1.5 * step.total_seconds():
            runs[-1][1] = at
        else:
            runs.append([at, at])
    return [
        Episode(
            name=labels["alertname"],
            severity=labels.get("severity", "none"),
            labels=_others(labels),
            start=datetime.fromtimestamp(first, UTC),
            end=None if now.timestamp() - last <= 1.5 * step.total_seconds() else datetime.fromtimestamp(last, UTC),
        )
        for first, last in runs
    ]


def _alert(labels: dict[str, str], annotations: dict[str, str], state: str, since: str) -> Alert:
    return Alert(
        name=labels["alertname"],
        state=state,
        severity=labels.get("severity", "none"),
        summary=annotations.get("summary", ""),
        description=annotations.get("description", ""),
        runbook_url=annotations.get("runbook_url", ""),
        since=datetime.fromisoformat(since),
        labels=_others(labels),
    )


def _others(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    known = {"alertname", "severity", "alertstate", "namespace", "release", "__name__"}
    return tuple(sorted((name, value) for name, value in labels.items() if name not in known))
