"""The alerts page against a server that answers as Alertmanager and Prometheus do."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.dashboard.conftest import Pages, texts

NAME = "StragglersDropped"
RUNBOOK = "https://example.org/runbook#stragglersdropped"
ANNOTATIONS = {"summary": "Usage was dropped.", "description": "3 stragglers in 5 min.", "runbook_url": RUNBOOK}


@dataclass
class Answers:
    """What the server says of alerts; `history` holds the instants at which the alert fired."""

    firing: list[dict[str, Any]] = field(default_factory=list)
    pending: list[dict[str, Any]] = field(default_factory=list)
    history: list[datetime] = field(default_factory=list)
    rules: list[dict[str, Any]] = field(default_factory=lambda: [{"name": NAME, "labels": {"severity": "page"}}])

    def to(self, path: str) -> Any:
        if path == "/api/v2/alerts":
            return self.firing
        if path == "/api/v1/rules":
            return {"status": "success", "data": {"groups": [{"name": "weir.money", "rules": self.rules}]}}
        if path == "/api/v1/alerts":
            return {"status": "success", "data": {"alerts": self.pending}}
        labels = {"__name__": "ALERTS", "alertname": NAME, "severity": "page", "alertstate": "firing", "job": "billing"}
        series = [{"metric": labels, "values": [[at.timestamp(), "1"] for at in self.history]}]
        return {"status": "success", "data": {"resultType": "matrix", "result": series if self.history else []}}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    said = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name is given
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said.to(urlsplit(self.path).path)).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is given
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("PROMETHEUS", "ALERTMANAGER"):
        monkeypatch.setenv(f"WEIR_{name}_URL", f"http://127.0.0.1:{server.server_port}")
    yield said
    server.shutdown()
    server.server_close()


def alert(state: str = "active", severity: str = "page") -> dict[str, Any]:
    return {
        "labels": {"alertname": NAME, "severity": severity, "job": "billing"},
        "annotations": ANNOTATIONS,
        "startsAt": "2026-03-01T12:00:00.000Z",
        "status": {"state": state, "silencedBy": [], "inhibitedBy": []},
    }


def test_without_alerts_the_page_shows_when_it_was_checked(open_page: Pages, answers: Answers) -> None:
    shown = texts(open_page("alerts"))
    assert "No alert is firing." in shown
    assert "Nothing is about to fire." in shown
    assert "No alert has fired in this time." in shown


@pytest.mark.parametrize("rules", [[], [{"name": "KubeJobFailed", "labels": {}}]])
def test_that_nothing_fires_is_no_health_where_prometheus_has_no_rules_of_weir(
    open_page: Pages, answers: Answers, rules: list[dict[str, Any]]
) -> None:
    answers.rules = rules
    shown = texts(open_page("alerts"))
    assert "No alert is firing." not in shown
    assert "Nothing is about to fire." not in shown
    assert shown.count("Prometheus has no rules of Weir, so that no alert can fire.") == 2


def test_a_firing_alert_shows_severity_meaning_and_runbook_and_disappears(open_page: Pages, answers: Answers) -> None:
    answers.firing.append(alert())
    page = open_page("alerts")
    shown = texts(page)
    assert f"**{NAME}**" in shown
    assert "firing]" in shown
    assert "page]" in shown
    assert "Usage was dropped." in shown
    assert f"[Runbook]({RUNBOOK})" in shown
    assert "Since 2026-03-01 12:00:00 UTC" in shown

    answers.firing.clear()
    assert NAME not in texts(page.run())


def test_alerts_of_one_name_are_one_card_that_lists_each(open_page: Pages, answers: Answers) -> None:
    for number in range(22):
        labels = {"alertname": NAME, "severity": "page", "meter": f"meter-{number:02}", "instance": "10.0.0.1:9090"}
        answers.firing.append({**alert(), "labels": labels})
    answers.firing.append({**alert(), "labels": {"alertname": "DeadLetters", "severity": "ticket"}})
    shown = texts(open_page("alerts"))
    assert re.findall(r"\*\*(\w+)\*\*", shown) == [NAME, "DeadLetters"]
    assert "22 of them" in shown
    assert [f"meter-{number:02}" in shown for number in range(11)] == [True] * 10 + [False]
    assert "and 12 more" in shown
    assert shown.count("Usage was dropped.") == 2, "once a card"
    assert "instance" not in shown


def test_alerts_of_one_name_show_their_own_texts(open_page: Pages, answers: Answers) -> None:
    for outcome in ("abandoned", "orphaned"):
        said = {**ANNOTATIONS, "summary": f"Many have no partner: {outcome}", "description": f"7 % were {outcome}."}
        labels = {"alertname": "OutcomesUnpaired", "severity": "ticket", "outcome": outcome}
        answers.firing.append({**alert(), "labels": labels, "annotations": said})
    shown = texts(open_page("overview"))
    assert shown.count("**OutcomesUnpaired**") == 1
    assert "Many have no partner: abandoned · 7 % were abandoned. · outcome abandoned" in shown
    assert "Many have no partner: orphaned · 7 % were orphaned. · outcome orphaned" in shown


def test_alerts_of_others_and_of_another_namespace_are_not_shown(
    open_page: Pages, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"Watchdog": "here", "DeadLetters": "elsewhere", "SequenceGap": "here"}
    for name, namespace in others.items():
        labels = {"alertname": name, "severity": "page", "namespace": namespace}
        answers.firing.append({**alert(), "labels": labels})
        answers.pending.append({**alert(), "labels": labels, "state": "pending", "activeAt": "2026-03-01T12:00:00Z"})
    answers.history.append(datetime.now(UTC))
    monkeypatch.setenv("WEIR_NAMESPACE", "here")
    page = open_page("alerts")
    assert re.findall(r"\*\*(\w+)\*\*", texts(page)) == ["SequenceGap"] * 2
    assert "No alert has fired in this time." in texts(page)


def test_alerts_of_another_release_in_the_namespace_are_not_shown(
    open_page: Pages, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, release in {"DeadLetters": "another", "SequenceGap": "weir"}.items():
        labels = {"alertname": name, "severity": "page", "namespace": "here", "release": release}
        answers.firing.append({**alert(), "labels": labels})
    monkeypatch.setenv("WEIR_NAMESPACE", "here")
    monkeypatch.setenv("WEIR_RELEASE", "weir")
    assert re.findall(r"\*\*(\w+)\*\*", texts(open_page("alerts"))) == ["SequenceGap"]


def test_the_overview_shows_it_too(open_page: Pages, answers: Answers) -> None:
    answers.firing.append(alert("suppressed", "ticket"))
    shown = texts(open_page("overview"))
    assert "suppressed]" in shown
    assert "ticket]" in shown


def test_a_pending_alert_is_not_called_firing(open_page: Pages, answers: Answers) -> None:
    labels = {"alertname": NAME, "severity": "page"}
    answers.pending.append(
        {"labels": labels, "annotations": ANNOTATIONS, "state": "pending", "activeAt": "2026-03-01T12:00:00Z"}
    )
    answers.pending.append({**answers.pending[0], "state": "firing", "labels": {**labels, "alertname": "Other"}})
    shown = texts(open_page("alerts"))
    assert "pending]" in shown
    assert "Other" not in shown


def test_history_separates_episodes_and_shows_which_one_lasts(open_page: Pages, answers: Answers) -> None:
    now = datetime.now(UTC)
    step = timedelta(seconds=30)
    answers.history += [now - timedelta(hours=3) + number * step for number in range(10)]
    answers.history += [now - number * step for number in range(5, -1, -1)]
    page = open_page("alerts")
    assert "2 episodes, 1 resolved" in texts(page)
    table = page.dataframe[0].value
    assert table["state"].tolist() == ["● firing", "✓ resolved"]
    assert table["lasted"].tolist()[1] == "4 min 30 s"
    assert table["labels"].tolist() == ["job=billing"] * 2


def test_an_outage_keeps_the_last_alerts(open_page: Pages, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    answers.firing.append(alert())
    page = open_page("alerts")

    def broken(self: Answers, path: str) -> Any:
        raise OSError("the server is gone")

    monkeypatch.setattr(Answers, "to", broken)
    shown = texts(page.run())
    assert shown.count("backend down") == 3
    assert "Alertmanager at 127.0.0.1:" in shown
    assert f"**{NAME}**" in shown
    assert "Last values, read " in shown


def test_without_prometheus_the_page_explains_how_to_install_it(open_page: Pages) -> None:
    shown = texts(open_page("alerts"))
    assert shown.count("not connected") == 3
    assert "WEIR_ALERTMANAGER_URL" in shown
    assert "WEIR_PROMETHEUS_URL" in shown
