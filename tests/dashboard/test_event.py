"""The page of one event: what it says became of it, and that nothing a stranger sent or asked does more than be shown.

Oracle: what the sentence says is billed, is what the request adds to the windows that billing itself has made.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.backend import Backend
from dashboard.fates import fates
from dashboard.queries.event import SHOWN_CHARACTERS, read_event
from dashboard.scope import Scope
from dashboard.settings import Settings
from dashboard.views.event import _window, event_link, unusable
from jobs.streams import Table
from metering.meters import Meter
from metering.pricing import BILLED_IN_WHOLE
from tests.dashboard.conftest import Pages, texts
from tests.pipelines.billing import EXACT, NOON, usage_row
from tests.pipelines.explaining import GRACE, PRICES, Metered, bill_all, commit, price_version, record, stored_usage

EVENT_TIME = NOON + timedelta(seconds=7)
DAYS = 3_650
OF_NO_CURRENCY: dict[str, Any] = {
    "price": None,
    "currency": None,
    "plan": None,
    "cached_tokens": 5,
    **{f"cached_tokens_{name}": 0 for name in ("unit_price", "amount")},
    "cached_tokens_price_version": BILLED_IN_WHOLE,
}
"""An account that the catalog did not know: no price, and cached tokens that the input tokens bill."""


def event(lsn: int, **more: Any) -> dict[str, Any]:
    """A record of acme's request r."""
    said = {"account": "acme", "request_id": "r", "id": f"e{lsn}", "source": "s", "family": "request", "user_id": "u"}
    return record(lsn, EVENT_TIME + timedelta(seconds=lsn), event_time=EVENT_TIME, **{**said, **more})


def of_r(lsn: int = 1, delay: timedelta = timedelta(seconds=9), **more: Any) -> dict[str, Any]:
    """Usage of request r."""
    said = {"request_id": "r", "request_lsn": 4, "completion_lsn": 5, "plan": "p", "price": PRICES[1]}
    return usage_row(lsn, EVENT_TIME, delay, **{**said, **more})


def store(database: str, tables: Path, journal: list[dict[str, Any]], usage: list[dict[str, Any]]) -> None:
    commit(tables, Table.JOURNAL, journal)
    if usage:
        commit(tables, Table.USAGE, map(stored_usage, usage))
        bill_all(database, usage)


def test_a_billed_request_is_explained_from_the_bill_down_to_its_record(
    open_page: Pages, connected: str, database: str, tables: Path
) -> None:
    store(database, tables, [event(4), event(5, family="completion")], [of_r(day=NOON.date())])
    page = open_page("event", id="r", days=str(DAYS))
    (sentence,) = page.success
    assert sentence.value.replace("\\", "") == (
        "Billed: 0.123456789012 EUR in the minute 2026-03-01 12:00 UTC (closed), on the account's day 2026-03-01, at "
        "price version 2. It is a request with its completion."
    )
    assert "it adds up" in texts(page)
    bill, windows, usage, records = (one.value for one in page.dataframe)
    (line,) = bill.to_dict("records")
    assert (line["quantity"], line["× unit price"], line["= amount"]) == (1, "0.123456789012", "0.123456789012")
    assert windows["state"].tolist() == ["● closed"]
    assert usage["requests"].tolist() == [1]
    assert records["offset"].tolist() == ["4", "5"]
    assert [one.value for one in page.code] == ['{"id": "e4", "lsn": 4}']


@pytest.mark.parametrize(
    ("usage", "said"),
    [
        ([of_r(outcome="abandoned", completion_lsn=None)], "abandoned: no completion came in time"),
        ([of_r(price=None)], "Counted without a price, so it costs nothing yet"),
        (
            [of_r(), of_r(2, sign=-1, cause="duplicate", corrects_lsns=[1])],
            "Taken back: it adds nothing to any bill. Corrected since by the audit (billed twice).",
        ),
        (
            [
                of_r(price=PRICES[0]),
                of_r(2, sign=-1, price=PRICES[0], cause="repriced", corrects_lsns=[1]),
                of_r(3, cause="repriced", corrects_lsns=[1]),
            ],
            "Billed: 0.123456789012 EUR in the minute 2026-03-01 12:00 UTC (corrected), at price version 2.",
        ),
        ([of_r(**OF_NO_CURRENCY)], "Counted without a price, so it costs nothing yet"),
        (
            [
                of_r(**OF_NO_CURRENCY),
                of_r(2, sign=-1, cause="repriced", corrects_lsns=[1], **OF_NO_CURRENCY),
                of_r(3, cause="repriced", corrects_lsns=[1]),
            ],
            "Billed: 0.123456789012 EUR in the minute 2026-03-01 12:00 UTC (corrected), at price version 2.",
        ),
        ([of_r(delay=3 * GRACE, quantities={Meter.CACHED_TOKENS: 5})], "Dropped: cached tokens, received after grace"),
        ([of_r(delay=3 * GRACE, quantities={Meter.OUTPUT_TOKENS: 5})], "Held: output tokens, received after grace"),
        (
            [of_r(delay=3 * GRACE, quantities={Meter.REQUESTS: 1, Meter.CACHED_TOKENS: 5})],
            "at price version 2. Dropped: cached tokens, received after grace",
        ),
    ],
)
def test_each_fate_of_usage_has_a_sentence(
    *, open_page: Pages, connected: str, database: str, tables: Path, usage: list[dict[str, Any]], said: str
) -> None:
    store(database, tables, [event(4), event(5, family="completion")], usage)
    shown = texts(open_page("event", id="r", days=str(DAYS))).replace("\\", "")
    assert said in shown
    assert "it adds up" in shown


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (event(4), "it waits for its other part"),
        (event(4, request_id=None), "It belongs to no request, so it is on no bill"),
        (event(4, disposition="duplicate", first_lsn=3), "Lsn 4 is a duplicate of lsn 3"),
        (event(4, disposition="conflict", first_lsn=3), "Lsn 4 is in conflict with lsn 3"),
        (event(4, disposition="rejected", reason="too_old", violation="the clock"), "rejected as too_old (the clock)"),
    ],
)
def test_each_fate_of_a_record_has_a_sentence(
    open_page: Pages, connected: str, tables: Path, found: dict[str, Any], said: str
) -> None:
    commit(tables, Table.JOURNAL, [found])
    assert said in texts(open_page("event", id="e4", days=str(DAYS))).replace("\\", "")


def test_a_repeat_is_explained_with_the_outcome_of_its_first(
    open_page: Pages, connected: str, database: str, tables: Path
) -> None:
    again = event(6, disposition="duplicate", first_lsn=4)
    store(database, tables, [event(4), event(5, family="completion"), again], [of_r()])
    page = open_page("event", id="e6", days=str(DAYS))
    assert [one.value.replace("\\", "") for one in page.info] == [
        "Lsn 6 is a duplicate of lsn 4: only that one counts."
    ]
    assert [one.value.replace("\\", "")[:30] for one in page.success] == ["Billed: 0.123456789012 EUR in t"[:30]]


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(2))
def test_oracle_the_sentence_bills_what_the_request_adds_to_the_windows(
    connected: str, database: str, tables: Path, seed: int
) -> None:
    history = Metered(seed, requests=24)
    history.store(database, tables)
    backend = Backend(Settings(postgres_url=connected, tables=str(tables)))
    billed = 0
    for request_id in sorted({row["request_id"] for row in history.usage}):
        document = read_event(backend, request_id, DAYS).document
        assert document is not None
        added = Decimal(0)
        for window in document["windows"]:
            added = EXACT.add(added, window["contribution"]["amount"])
        sentences = [one.sentence for one in fates(document, request_id)]
        told = [one.split(": ")[1].split(" ")[0] for one in sentences if one.startswith("Billed: ")]
        assert [Decimal(one.replace(",", "")) for one in told] == [added] or (not told and not added), sentences
        billed += bool(told)
    assert billed > 5


def test_a_quantity_event_is_found_by_its_id(open_page: Pages, connected: str, database: str, tables: Path) -> None:
    made: dict[str, Any] = {"request_id": f"quantity:{'0a' * 16}"}
    usage = of_r(**made, day=NOON.date()) | {"request_lsn": 4, "completion_lsn": 4}
    store(database, tables, [event(4, family="quantity", id="call-1/input", **made)], [usage])
    page = open_page("event", id="call-1/input", days=str(DAYS))
    (sentence,) = page.success
    assert sentence.value.replace("\\", "").endswith("It is a quantity without a request.")
    assert "it adds up" in texts(page)


def test_what_a_stranger_sent_is_shown_and_never_drawn(open_page: Pages, connected: str, tables: Path) -> None:
    sent = "<img src=x onerror=alert(1)> ![x](http://example.com/x.png) \u202eoffline\x1b[2J" + "y" * SHOWN_CHARACTERS
    name = "<b>![x](http://example.com/e)</b>"
    commit(tables, Table.JOURNAL, [event(4, id=name, value=sent.encode(), disposition="rejected", reason="malformed")])
    page = open_page("event", id=name, days=str(DAYS))
    (value,) = page.code
    assert value.value.startswith(sent.partition("\u202e")[0] + "\\u202eoffline\\x1b[2J")
    assert value.language in (None, "", "plaintext")
    assert f"has the other {len(sent) - SHOWN_CHARACTERS:,}." in texts(page)
    assert not any("<" in one.value.replace("\\<", "") for one in page.markdown)
    assert "![x](http" not in texts(page)


def test_a_value_that_is_no_text_is_shown_in_base64(open_page: Pages, connected: str, tables: Path) -> None:
    commit(tables, Table.JOURNAL, [event(4, value=b"\xff\x00")])
    assert [one.value for one in open_page("event", id="e4", days=str(DAYS)).code] == ["base64: /wA="]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x" * 513, "An id has at most 512 bytes, and this has 513"),
        ("ü" * 257, "An id has at most 512 bytes, and this has 514"),
        ("r\x00", "no control characters"),
        ("r\x1b[2J", "no control characters"),
        ("  ", "An id is more than spaces"),
        ("<script>", "No request or event of this id"),
        ("r ", "It begins or ends with a space"),
        ("", "Enter the id"),
    ],
)
def test_an_invalid_or_unknown_id_is_reported_in_a_sentence(
    open_page: Pages, connected: str, tables: Path, text: str, said: str
) -> None:
    commit(tables, Table.JOURNAL, [event(4)])
    page = open_page("event", id=text) if text else open_page("event")
    assert said in texts(page)
    assert not page.dataframe


@pytest.mark.parametrize("days", ["abc", "0", "-1", "99999999999", "35.5"])
def test_invalid_days_in_a_link_are_ignored(open_page: Pages, connected: str, tables: Path, days: str) -> None:
    commit(tables, Table.JOURNAL, [event(4)])
    page = open_page("event", id="e4", days=days)
    assert "No request or event of this id" in texts(page)
    shown = page.number_input[0].value
    assert shown is not None
    assert 1 <= shown <= DAYS


@settings(deadline=None, max_examples=30)
@given(text=st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_link_leads_to_the_id_that_it_is_of_and_far_enough_back(text: str) -> None:
    received_at = datetime.now(UTC) - timedelta(days=90)
    address = urlsplit(event_link(text, received_at))
    asked = parse_qs(address.query, strict_parsing=True, keep_blank_values=True)
    assert (address.path, address.netloc, address.fragment) == ("event", "", "")
    assert asked["id"] == [text]
    assert int(asked["days"][0]) == 91
    assert "days" not in event_link(text, received_at + timedelta(days=80))


def test_a_text_that_is_no_utf8_is_no_id() -> None:
    assert "UTF-8" in (unusable("\ud800") or "")


def test_nothing_is_known_before_there_are_tables(open_page: Pages, connected: str) -> None:
    assert "no data yet" in texts(open_page("event", id="r"))


def test_only_an_unlimited_scope_sees_other_accounts_and_records_without_an_account(
    connected: str, database: str, tables: Path
) -> None:
    nobodys = event(6, id="e4", account=None, disposition="rejected", reason="missing_subject")
    store(database, tables, [event(4), event(5, family="completion"), nobodys], [of_r()])
    known = Settings(postgres_url=connected, tables=str(tables))

    def seen(*accounts: str) -> list[int] | None:
        scope = Scope(frozenset(accounts)) if accounts else Scope()
        found = read_event(Backend(known.model_copy(update={"scope": scope})), "r", DAYS).document
        return None if found is None else [one["lsn"] for one in found["records"]]

    assert (seen(), seen("acme"), seen("bolt")) == ([4, 5, 6], [4, 5], None)


def test_the_author_of_a_price_is_shown_only_to_an_unlimited_scope(
    open_page: Pages, connected: str, database: str, tables: Path
) -> None:
    store(database, tables, [event(4), event(5, family="completion")], [of_r()])
    commit(tables, Table.PRICES, [price_version(PRICES[1], changed_by="ann@finance", changed_at=NOON)])
    commit(tables, Table.PRICES, [price_version(PRICES[0], changed_by="bob@finance", changed_at=NOON)])
    page = open_page("event", id="r", days=str(DAYS))
    (price,) = page.dataframe[1].value.to_dict("records")
    assert (price["price version"], price["unit price"], price["changed by"]) == ("2", "0.123456789012", "ann@finance")
    known = Settings(postgres_url=connected, tables=str(tables), scope=Scope(frozenset(["bolt"])))
    assert read_event(Backend(known), "r", DAYS).document is None


def test_each_report_of_a_request_is_shown_with_what_it_reports_and_why_one_bills(
    open_page: Pages, connected: str, database: str, tables: Path
) -> None:
    said = {"family": "both", "status": "completed"}
    journal = [event(4, **said, input_tokens=7), event(5, **said, input_tokens=8)]
    rows = [of_r(1, completion_lsn=4), of_r(2, request_lsn=5, outcome="superseded", quantities={})]
    store(database, tables, journal, rows)
    page = open_page("event", id="r", days=str(DAYS))
    (shown,) = [one.value for one in page.dataframe if "why" in one.value]
    assert [(row["event id"], row["bills"], row["reported"]) for row in shown.to_dict("records")] == [
        ("e4", "yes", "input_tokens 7"),
        ("e5", "no", "input_tokens 8"),
    ]
    assert set(shown["why"]) == {
        "event e4 bills: the first report of a request counts, as best_report_bills was off",
    }


def test_an_outage_is_reported_without_any_secret(
    open_page: Pages, connected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("connection to server failed: password weir-secret")

    monkeypatch.setattr(psycopg, "connect", refuse)
    page = open_page("event", id="r")
    assert "backend down" in page.markdown[0].value
    assert "secret" not in texts(page)


@pytest.mark.parametrize(("unit_price", "amount"), [(None, None), (Decimal(0), Decimal(0))])
def test_a_window_without_a_price_has_no_amount_and_is_not_shown_as_0(
    unit_price: Decimal | None, amount: Decimal | None
) -> None:
    window = {
        "account": "acme",
        "window_start": NOON,
        "state": "closed",
        "model": "m",
        "meter": "requests",
        "quantity": Decimal(1),
        "amount": Decimal(0),
        "currency": "EUR",
        "contribution": {"quantity": Decimal(1), "amount": Decimal(0)},
        "price_versions": [{"unit_price": unit_price}],
    }
    row = _window(window)
    assert (row["amount"], row["amount of this"]) == (amount, amount)
