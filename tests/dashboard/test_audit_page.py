"""The page Audit: what was proved, found and corrected; nothing of it for who may see some accounts only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from streamlit.testing.v1 import AppTest

from jobs.audit.check import Check
from jobs.audit.check_rows import check_rows
from tests.dashboard.conftest import Pages, texts
from tests.database_rows import write

SOUND = Check("I6", 1_234, 0, "signed usage is windows and stragglers")
BROKEN = Check("I8", 12, 3, "a fault nobody knows | of *another*", expected=1, corrected=1)


def audited(began_hours_ago: float = 3.5, **values: Any) -> dict[str, Any]:
    began = datetime.now(UTC) - timedelta(hours=began_hours_ago)
    row = {"started_at": began, "finished_at": began + timedelta(seconds=75), "version": "1.2.3", "is_proved": True}
    return {**row, "checks": Jsonb(check_rows([SOUND])), **values}


def metrics(page: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in page.metric}


def test_before_the_first_audit_the_page_explains_how_to_run_one(open_page: Pages, connected: str) -> None:
    page = open_page("audit")
    assert "no data yet]" in page.markdown[0].value
    assert "No audit has run yet. Run `weir audit`" in texts(page)
    assert not page.dataframe


def test_an_audit_shows_its_period_what_it_examined_and_what_it_changed_to_the_last_digit(
    open_page: Pages, connected: str, database: str
) -> None:
    changed = {
        "repriced": {"EUR": "-0.000000000000000001", "USD": "12345678901234567890.5"},
        "rejoined": {"EUR": "2.5"},
    }
    corrected = Jsonb({"rejoined": 3, "repriced": 8})
    write(database, "audits", audited(30), audited(corrected=corrected, changed=Jsonb(changed)))
    page = open_page("audit")
    shown, audits, checks, causes = texts(page), *(table.value for table in page.dataframe)
    assert ":green-badge[:material/play_arrow: live]" in page.markdown[0].value
    assert metrics(page)["Everything proved"] == "3 h ago"
    assert (metrics(page)["Corrected"], metrics(page)["Corrected, EUR"]) == ("11 rows", "≈ 2.50 EUR")
    assert audits["of"].tolist() == ["everything", "everything"]
    assert audits["result"].tolist() == ["✓ proved", "✓ proved"]
    assert audits["took"].tolist() == ["1 min 15 s", "1 min 15 s"]
    assert audits["rows corrected"].tolist() == [11, 0]
    assert audits["changed, EUR"].tolist()[0] == "2.499999999999999999"
    assert audits["changed, USD"].tolist()[0] == "12,345,678,901,234,567,890.50"
    assert dict(zip(checks["check"], checks["result"], strict=True))["I6"] == "✓"
    assert dict(zip(checks["check"], checks["examined"], strict=True))["I6"] == 1_234
    assert dict(zip(checks["check"], checks["result"], strict=True))["I3"] == "◌ no rows"
    assert causes["cause"].tolist() == ["rejoined", "repriced"]
    assert causes["changed, EUR"].tolist() == ["2.500000000000000000", "-0.000000000000000001"]
    assert "everything" in shown


def test_audits_that_found_failed_or_did_not_end_are_distinguished(
    open_page: Pages, connected: str, database: str
) -> None:
    now = datetime.now(UTC)
    day = {"received_from": now - timedelta(days=1), "occurred_to": now}
    faulty = {"is_proved": False, "checks": Jsonb(check_rows([SOUND, BROKEN])), "unexpected": Jsonb({"I8": 2})}
    write(
        database,
        "audits",
        audited(4, **faulty),
        audited(3, is_proved=False, failure="billing has 3 rows to fold"),
        audited(2, is_proved=False, finished_at=None, **day),
        audited(1, **day),
    )
    page = open_page("audit")
    audits = page.dataframe[0].value
    assert audits["result"].tolist() == ["✓ proved", "◔ not finished", "✕ failed", "✕ found faults"]
    assert audits["unexpected"].tolist() == [0, 0, 0, 2]
    received, occurred = (f"{instant:%Y-%m-%d %H:%M}" for instant in day.values())
    assert audits["of"].tolist()[0] == f"received from {received}, occurred before {occurred}"
    assert metrics(page)["Everything proved"] == "never"
    first, _, third, _ = (str(number) for number in sorted(audits["audit"]))
    found = open_page("audit", audit=first).dataframe[1].value
    (fault,) = found[found["check"] == "I8"].to_dict("records")
    assert (fault["result"], fault["found"], fault["unexpected"], fault["corrected"]) == ("✕", 3, 2, 1)
    assert fault["detail"] == BROKEN.says
    assert "billing has 3 rows to fold" in texts(open_page("audit", audit=str(int(first) + 1)))
    assert "It is still running, or was ended early" in texts(open_page("audit", audit=third))
    assert "not among those above" in texts(open_page("audit", audit="999"))


def test_an_old_proof_is_stale_and_has_advice(open_page: Pages, connected: str, database: str) -> None:
    write(database, "audits", audited(27))
    page = open_page("audit")
    assert "stale]" in page.markdown[0].value
    assert "Run `weir audit`" in texts(page)
    assert len(page.dataframe[0].value) == 1
    assert "No audit began in the last 24 h" in texts(open_page("audit", hours="24h"))


def test_a_view_of_some_accounts_shows_that_audits_cover_all(
    open_page: Pages, connected: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(database, "audits", audited(changed=Jsonb({"repriced": {"EUR": "77"}}), corrected=Jsonb({"repriced": 1})))
    monkeypatch.setenv("WEIR_ACCOUNTS", "acme")
    page = open_page("audit")
    assert "not connected]" in page.markdown[0].value
    assert "An audit shows all accounts" in texts(page)
    assert not page.dataframe
    assert not page.metric


def test_an_outage_keeps_the_last_read_values(
    open_page: Pages, connected: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(database, "audits", audited())
    known = [str(table.value) for table in open_page("audit").dataframe]
    assert known

    def refuse(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("connection to server failed")

    monkeypatch.setattr(psycopg, "connect", refuse)
    page = open_page("audit")
    assert "backend down" in page.markdown[0].value
    assert [str(table.value) for table in page.dataframe] == known
