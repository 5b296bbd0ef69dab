"""What the pages say about known data: numbers, states, filters and the way from a line to its requests."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg.types.json import Jsonb
from streamlit.testing.v1 import AppTest

from dashboard.exact import total as exact_total
from dashboard.wording import span
from jobs.streams import Table
from metering.digits import EXACT
from metering.plan_terms import PLAN_MODEL
from metering.vocabulary import Job
from tests.dashboard.conftest import Pages, texts
from tests.dashboard.seeding import Day, usage_of, write_table
from tests.database_rows import MINUTE, progress, window, write, write_windows

APP = Path(__file__).parents[2] / "dashboard" / "app.py"
PAGES = (
    "Overview",
    "Live windows",
    "Sessions",
    "Late and dropped",
    "Joins",
    "Models",
    "Watch",
    "Bills",
    "Invoices",
    "One event",
    "Audit",
    "Sources",
    "Alerts",
    "Runbook",
)


def this_minute() -> datetime:
    return datetime.now(UTC).replace(second=0, microsecond=0)


def metrics(page: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in page.metric}


def test_the_app_itself_draws_the_overview_and_whose_rows_it_shows(
    seeded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = AppTest.from_file(str(APP), default_timeout=60).run()
    assert "All accounts" in texts(page)
    assert page.title[0].value == "Overview"
    monkeypatch.setenv("WEIR_ACCOUNTS", "acme")
    assert "Only acme" in texts(page.run())
    monkeypatch.setenv("WEIR_ACCOUNTS", "")
    assert "names no account" in texts(page.run())


def test_running_applications_show_lag_last_batch_and_restarts(open_page: Pages, connected: str, database: str) -> None:
    now = datetime.now(UTC).isoformat()
    said = {"records_behind": 1234, "seconds_behind": 5.25, "catch_up_seconds": 240.0, "last_batch_at": now}
    for job in Job:
        progress(database, job, datetime.now(UTC), report={**said, "last_batch_records": 9876, "last_batch_ms": 321})
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE jobs SET epoch = 4 WHERE job = 'joins'")
        connection.execute("INSERT INTO exits (job, how, reason) VALUES ('joins', 'crashed', 'out of memory\nat …')")
    page = open_page("overview")
    shown = texts(page)
    assert all(f"**{job}**" in shown for job in Job)
    assert [metric.value for metric in page.metric][: 2 * len(Job)] == ["1,234", "5.2"] * len(Job)
    assert re.search(r"Last batch: 9,876 records in 321 ms, \d+ s ago", shown)
    assert shown.count("Caught up in about 4 min") == len(Job)
    assert shown.count("Restarts: 0") == len(Job) - 1
    assert "Restarts: 3" in shown
    assert re.search(r"Last ended \d+ s ago: out of memory\]", shown)


def test_the_card_of_ingestion_names_the_slowest_of_several_topics(
    open_page: Pages, connected: str, database: str
) -> None:
    lags: list[tuple[str, int, float | None]] = [("new", 3, None), ("gpu", 1200, 31.04), *(("a", 1, 9.0),) * 2]
    lags.append(("read", 0, 0.0))
    names = ("topic", "records_behind", "seconds_behind")
    report = {"records_behind": 1205, "topics": [dict(zip(names, lag, strict=True)) for lag in lags]}
    progress(database, Job.INGESTION, datetime.now(UTC), report=report)
    shown = texts(open_page("overview"))
    assert "Topic new: 3 records behind, for an unknown time" in shown
    assert "Topic gpu: 1,200 records behind, 31.0 s" in shown
    assert "Behind, too: 1 more" in shown
    assert "Topic read" not in shown
    with psycopg.connect(database) as connection:
        read = Jsonb({"topics": [dict(zip(names, ("read", 0, 0.0), strict=True))] * 2})
        connection.execute("UPDATE jobs SET progress = progress || %s WHERE job = 'ingestion'", [read])
    assert "Everything of 2 topics is read" in texts(open_page("overview"))


def test_an_unknown_lag_is_not_shown_as_none(open_page: Pages, connected: str, database: str) -> None:
    progress(database, "joins", None, state="starting")
    page = open_page("overview")
    assert "starting]" in texts(page)
    assert [metric.value for metric in page.metric] == ["unknown", "unknown"]
    assert "none since it started" in texts(page)


def test_the_conservation_equation_adds_up(open_page: Pages, seeded: str) -> None:
    page = open_page("overview")
    found = {label: int(value.replace(",", "")) for label, value in metrics(page).items() if label[0] in "=+r"}
    received = found.pop("received")
    assert received == sum(found.values()) == 480
    assert len(found) == 4
    assert "residual 0" in texts(page)


def test_a_residual_is_an_error_with_the_command_that_explains_it(open_page: Pages, seeded: str) -> None:
    with psycopg.connect(seeded) as connection:
        connection.execute("""UPDATE jobs SET progress = progress || '{"residual": -3}' WHERE job = 'ingestion'""")
    page = open_page("overview")
    assert "Residual -3" in page.error[0].value
    assert "weir journal --summary" in page.error[0].value


def test_windows_update_live_and_keep_every_digit(open_page: Pages, connected: str, database: str) -> None:
    minute = this_minute()
    progress(database, "billing", minute + timedelta(seconds=30))
    write(
        database,
        "usage_windows",
        window(minute, 3, unit_price=Decimal("12345678.900000000001")),
        window(minute, 40, meter="input_tokens", unit_price=None, price_version=None),
        window(minute - MINUTE, 2, account="a2", currency="USD"),
        window(minute - 30 * MINUTE, 9, corrected=True),
    )
    page = open_page("windows")
    table = page.dataframe[0].value
    assert table["state"].tolist() == ["○ open", "◐ closing", "✎ corrected"]
    assert table["account"].tolist() == ["a1", "a2", "a1"]
    assert table["requests"].tolist() == [3, 2, 9]
    assert table["amount"].tolist()[0] == "37,037,036.700000000003"
    assert table["unpriced quantity"].tolist() == [40, 0, 0]
    assert metrics(page)["Requests in them"] == "5"

    with psycopg.connect(database) as connection:
        connection.execute("UPDATE usage_windows SET quantity = 5 WHERE quantity = 3")
    assert page.run().dataframe[0].value["requests"].tolist() == [5, 2, 9]


def test_quantities_past_what_a_browser_or_an_int64_holds_keep_every_digit(
    open_page: Pages, connected: str, database: str
) -> None:
    minute = this_minute()
    progress(database, "billing", minute + timedelta(seconds=30))
    huge, price = 10**24 + 7, Decimal("12345678.900000000001")
    write_windows(database, window(minute, huge, unit_price=price))
    table = open_page("windows").dataframe[0].value
    assert table["requests"].tolist() == ["1,000,000,000,000,000,000,000,007"]
    amount = "12,345,678,900,000,000,001,000,086,419,752.300000000007"
    assert table["amount"].tolist()[0] == amount
    bills = open_page("bills", month=f"{minute:%Y-%m}", account="a1")
    assert bills.dataframe[0].value["month to date"].tolist() == [amount]
    assert bills.dataframe[1].value["amount"].tolist() == [amount]


@pytest.mark.parametrize(
    ("frontier", "state"),
    [
        (timedelta(minutes=1) - timedelta(microseconds=1), "○ open"),
        (timedelta(minutes=1), "◐ closing"),
        (timedelta(minutes=6) - timedelta(microseconds=1), "◐ closing"),
        (timedelta(minutes=6), "● closed"),
    ],
)
def test_a_window_changes_its_state_exactly_when_the_frontier_passes(
    open_page: Pages, connected: str, database: str, frontier: timedelta, state: str
) -> None:
    progress(database, "billing", this_minute() + frontier)
    write_windows(database, window(this_minute()))
    assert open_page("windows").dataframe[0].value["state"].tolist() == [state]


def test_a_link_opens_a_window_to_the_lateness_of_its_requests(open_page: Pages, seeded: str, day: Day) -> None:
    rows = [row for row in usage_of(day) if row["account"] == "acme"]
    minute = max(row["event_time"] for row in rows if row["event_time"] < day.now - 3 * MINUTE)
    start = minute.replace(second=0, microsecond=0)
    mine = [row for row in rows if start <= row["event_time"] < start + MINUTE]
    page = open_page("windows", account="acme", window=f"{start:%Y-%m-%d %H:%M} acme")
    table = page.dataframe[1].value
    assert sorted(table["request"]) == sorted(row["request_id"] for row in mine)
    latest = max((row["received_at"] - start - MINUTE).total_seconds() for row in mine)
    assert max(table["late (s)"]) == pytest.approx(latest, abs=0.06)


def test_a_model_is_a_filter_too(open_page: Pages, seeded: str) -> None:
    table = open_page("windows", by="model").dataframe[0].value
    assert {"small-1", "large-2", "vision-1"} <= set(table["model"])
    assert "account" not in table


def test_a_user_has_a_history_with_tokens(open_page: Pages, seeded: str, day: Day) -> None:
    rows = [row for row in usage_of(day) if (row["account"], row["user_id"]) == ("acme", "u-2")]
    table = open_page("sessions", account="acme", user="u-2").dataframe[1].value
    assert sum(table["events"]) >= len(rows) > 0
    assert table["input tokens"].sum() == sum(row["input_tokens"] or 0 for row in rows)


def test_the_grace_slider_counts_what_would_have_been_late(open_page: Pages, seeded: str, day: Day) -> None:
    rows = [row for row in usage_of(day) if row["outcome"] in ("matched", "abandoned")]
    ends = [row["event_time"].replace(second=0, microsecond=0) + MINUTE for row in rows]
    lateness = [(row["received_at"] - end).total_seconds() for row, end in zip(rows, ends, strict=True)]
    for grace in (0, 60, 300):
        page = open_page("late", grace=span(timedelta(seconds=grace)))
        beyond = sum(late >= grace for late in lateness)
        assert metrics(page)["would have been stragglers"] == f"{beyond:,} events"
    assert sum(late >= 0 for late in lateness) > sum(late >= 300 for late in lateness) > 0


def test_stragglers_show_decision_money_and_how_late(open_page: Pages, seeded: str) -> None:
    with psycopg.connect(seeded) as connection:
        known = connection.execute(
            "SELECT count(*), count(*) FILTER (WHERE decision = 'drop') FROM stragglers"
        ).fetchone()
    assert known is not None
    table = open_page("late").dataframe[0].value
    assert (len(table), (table["decision"] == "✕ dropped").sum()) == known
    only = open_page("late", decision="dropped")
    assert set(only.dataframe[0].value["decision"]) == {"✕ dropped"}


def test_corrections_show_what_a_closed_window_was_and_what_it_is(open_page: Pages, seeded: str) -> None:
    with psycopg.connect(seeded) as connection:
        known = connection.execute("SELECT count(*), sum(new_quantity - old_quantity) FROM corrections").fetchone()
        corrected = connection.execute("SELECT count(*), sum(quantity) FROM stragglers WHERE decision = 'correct'")
        assert known == corrected.fetchone()
    table = open_page("late").dataframe[1].value
    was, now = (
        sum(Decimal(str(shown).replace(",", "")) for shown in table[f"quantity {when}"]) for when in ("was", "is")
    )
    assert (len(table), now - was) == known
    assert set(table["cause"]) == {"straggler"}


def test_outcomes_are_those_of_the_usage_table_and_new_files_are_added(
    open_page: Pages, seeded: str, tables: Path, day: Day
) -> None:
    rows = list(usage_of(day))
    matched = sum(row["outcome"] == "matched" for row in rows)
    assert metrics(open_page("joins"))["✓ matched"] == str(matched)
    more = [{**row, "lsn": 1_000_000 + row["lsn"]} for row in rows[:100]]
    write_table(tables, Table.USAGE, more)
    matched += sum(row["outcome"] == "matched" for row in more)
    page = open_page("joins")
    assert metrics(page)["✓ matched"] == str(matched)
    assert metrics(page)["◔ waiting now"] == "37"


def test_prices_in_force_and_future_prices_are_separated(open_page: Pages, seeded: str) -> None:
    table = open_page("joins").dataframe[0].value
    acme = table[(table["plan"] == "plan-acme") & (table["model"] == "small-1") & (table["meter"] == "requests")]
    assert acme["state"].tolist() == ["✓ in force", "◔ next"]
    assert acme["unit price"].tolist() == ["0.000100000000", "0.000200000000"]


def test_what_accounts_pay_now_is_listed_with_when_it_ends(open_page: Pages, seeded: str) -> None:
    with psycopg.connect(seeded) as connection:
        wanted = connection.execute(
            "SELECT account, model, meter, unit_price::text, in_force_until"
            " FROM catalog.effective_prices ORDER BY 1, 2, 3"
        ).fetchall()
    page = open_page("joins")
    table = page.dataframe[1].value
    assert table[["account", "model", "meter"]].to_numpy().tolist() == [list(row[:3]) for row in wanted] != []
    assert [Decimal(text) for text in table["unit price"]] == [Decimal(row[3]) for row in wanted]
    assert table["in force until (UTC)"].notna().tolist() == [row[4] is not None for row in wanted]
    assert "the next price or account begins or ends at" in texts(page)
    (one,) = {*open_page("joins", account="acme").dataframe[1].value["account"]}
    assert one == "acme"


def test_bills_equal_the_usage_to_the_last_digit_and_never_mix_currencies(
    open_page: Pages, seeded: str, day: Day
) -> None:
    with psycopg.connect(seeded) as connection:
        summed = connection.execute(
            """
            SELECT account, sum(amount) FROM usage_windows JOIN catalog.accounts USING (account)
            WHERE date_trunc('month', window_start AT TIME ZONE timezone) = %s GROUP BY account
            """,
            [datetime(day.now.year, day.now.month, 1)],  # noqa: DTZ001  # local time of each account's zone
        ).fetchall()
    table = open_page("bills", month=f"{day.now:%Y-%m}").dataframe[0].value
    assert {row["account"]: Decimal(row["month to date"]) for _, row in table.iterrows()} == dict(summed)
    assert dict(zip(table["account"], table["currency"], strict=True))["globex"] == "USD"


def test_a_month_is_that_of_the_accounts_time_zone(open_page: Pages, connected: str, database: str) -> None:
    progress(database, "billing", datetime.now(UTC))
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    first = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    for account, zone in (("berlin", "Europe/Berlin"), ("utc", "UTC"), ("broken", "No/Where")):
        row = {"account": account, "name": account, "plan": "p", "currency": "EUR", "timezone": zone}
        with psycopg.connect(database) as connection:
            # As a database of before did, which took any zone.
            connection.execute("ALTER TABLE catalog.accounts DISABLE TRIGGER check_account")
        write(database, "catalog.accounts", row)
        write_windows(database, window(first - MINUTE, 5, account=account), window(first, 2, account=account))
    table = open_page("bills", month=f"{first:%Y-%m}").dataframe[0].value
    assert dict(zip(table["account"], table["requests"], strict=True)) == {"berlin": 7, "broken": 2, "utc": 2}


def test_an_account_stands_below_the_one_whose_bill_it_is_part_of(
    open_page: Pages, connected: str, database: str
) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    progress(database, "billing", now)
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    for account, parent in (("group", None), ("child", "group"), ("alone", None)):
        row = {"account": account, "name": account, "plan": "p", "currency": "EUR", "parent": parent}
        write(database, "catalog.accounts", row)
    write_windows(database, *(window(now, number, account=name) for number, name in ((3, "child"), (5, "alone"))))
    table = open_page("bills", month=f"{now:%Y-%m}").dataframe[0].value
    assert table["account"].tolist() == ["alone", "group", "· child"]
    assert table["requests"].tolist() == [5, 0, 3]
    below = table["with accounts below"].tolist()
    assert below[1] == table["month to date"].tolist()[2]
    assert [str(one) in ("nan", "None", "") for one in (below[0], below[2])] == [True, True]


def test_what_a_plan_costs_is_a_line_of_the_bill_and_no_unpriced_quantity(
    open_page: Pages, connected: str, database: str
) -> None:
    now = datetime.now(UTC)
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    progress(database, "billing", now)
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    row = {"account": "a", "name": "A", "plan": "p", "currency": "EUR", "effective_from": first}
    write(database, "catalog.accounts", row)
    terms = {"effective_from": first, "terms": Jsonb({"kind": "plan", "flat_fee": "20", "minimum_amount": "25"})}
    of_plan = {"plan": "p", "model": PLAN_MODEL, "meter": "requests", "currency": "EUR"}
    write(database, "catalog.prices", {**of_plan, **terms})
    page = open_page("bills", month=f"{first:%Y-%m}", account="a")
    whole, lines = (frame.value for frame in page.dataframe[:2])
    assert [Decimal(value) for value in whole["month to date"]] == [25]
    assert whole["unpriced quantity"].tolist() == [0]
    assert lines["meter"].tolist() == ["flat", "minimum"]
    assert lines["tier"].tolist() == ["plan p", "plan p"]
    assert [Decimal(value) for value in lines["amount"]] == [20, 5]
    page = open_page("bills", month=f"{first:%Y-%m}", account="a", line="plan p · flat fee · EUR")
    assert "Prorated by the" in texts(page)


def test_a_changed_time_zone_moves_no_border_of_a_month_that_has_begun(
    open_page: Pages, connected: str, database: str
) -> None:
    now = datetime.now(UTC)
    progress(database, "billing", now)
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    row = {"account": "acme", "name": "Acme", "plan": "p", "currency": "EUR", "timezone": "Pacific/Auckland"}
    write(database, "catalog.accounts", row)
    first = datetime(now.year, now.month, 1, tzinfo=ZoneInfo("Pacific/Auckland"))
    following = (first + timedelta(days=32)).replace(day=1)
    starts = [first - MINUTE, first, following - MINUTE, following]
    write_windows(database, *(window(at, 10**n, account="acme") for n, at in enumerate(starts)))
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE catalog.accounts SET timezone = 'America/New_York'")
    table = open_page("bills", month=f"{first:%Y-%m}").dataframe[0].value
    assert table["requests"].tolist() == [110]
    assert table["time zone"].tolist() == ["Pacific/Auckland"]


def test_a_bill_by_a_dimension_adds_up_to_its_lines(open_page: Pages, connected: str, database: str) -> None:
    progress(database, "billing", datetime.now(UTC))
    first = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    unit_price = Decimal("12345678.900000000001")
    prices = {"unit_price": unit_price, "account": "acme"}
    write_windows(database, window(first, 10**15, **prices), window(first + MINUTE, 5, **prices, currency="USD"))
    tag = "account.tags.cost_center:a/b"
    parts = [(json.dumps({tag: "k1"}), False, 10**15 - 3), ('{"user_id": "u"}', False, 2), (None, True, 1)]
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE jobs SET config = config || %s", [Jsonb({"dimensions": [tag]})])
        connection.execute("DELETE FROM usage_days WHERE currency = 'EUR'")
    day = {"day": first.date(), "first_window": first, "last_window_end": first + MINUTE, **prices}
    key = {"model": "m1", "meter": "requests", "currency": "EUR", "price_version": 1}
    for named, is_other, quantity in parts:
        write(database, "usage_days", {**day, **key, "dimensions": named, "is_other": is_other, "quantity": quantity})
    page = open_page("bills", account="acme", month=f"{first:%Y-%m}", by=tag)
    total, by_key = page.dataframe[0].value, page.dataframe[1].value
    assert [(row["value"], row["kind"], row["currency"]) for _, row in by_key.iterrows()] == [
        ("k1", "one value", "EUR"),
        (None, "none", "USD"),
        (None, "none", "EUR"),
        ("other", "further ones", "EUR"),
    ]
    assert "By account.tags.cost_center:a/b" in texts(page).replace("\\", "")
    exact = [Decimal(row["amount"].replace(",", "")) for _, row in by_key.iterrows() if row["currency"] == "EUR"]
    shown = total[total["currency"] == "EUR"]["month to date"].tolist()
    assert shown == [f"{exact_total(exact):,f}"]
    assert exact_total(exact) == EXACT.multiply(Decimal(10**15), unit_price)


def test_a_line_leads_to_its_windows_requests_and_price_version(open_page: Pages, seeded: str, day: Day) -> None:
    month = f"{day.now:%Y-%m}"
    rows = [
        row
        for row in usage_of(day)
        if (row["account"], row["model"]) == ("acme", "small-1") and row["requests"]
        if f"{row['event_time'].astimezone(ZoneInfo('Europe/Berlin')):%Y-%m}" == month
    ]
    page = open_page("bills", account="acme", month=month, line="small-1 · requests · price lsn 10 · EUR")
    shown = texts(page)
    assert "0.0001 EUR per request, plan plan-acme" in shown
    windows, requests = page.dataframe[2].value, page.dataframe[3].value
    assert windows["quantity"].sum() == len(rows)
    assert sorted(requests["request"]) == sorted(row["request_id"] for row in rows)


def test_sources_show_silence_and_missing_numbers(open_page: Pages, seeded: str) -> None:
    page = open_page("sources")
    table = page.dataframe[0].value.set_index("source")
    assert table.loc["gateway/eu-1", "state"] == "✓ complete"
    assert table.loc["gateway/eu-2", "missing numbers"] == "50, 80 to 89"
    assert table.loc["gateway/eu-2", "missing"] == 11
    assert table.loc["device/7", "state"] == "⚠ silent"
    assert metrics(page)["Missing numbers"] == "11"
    types = page.dataframe[1].value.set_index("type")
    assert types.loc["ai.inference.completion.v9", "events"] == 41
    faults = open_page("sources", which="silent or missing").dataframe[0].value
    assert set(faults["source"]) == {"gateway/eu-2", "device/7", "gateway/us-1"}


def test_a_scoped_view_hides_what_sums_over_all_accounts(
    open_page: Pages, seeded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_ACCOUNTS", "acme")
    page = open_page("overview")
    assert "residual" not in texts(page).replace("the residual is of all of it", "")
    assert metrics(open_page("joins"))["◔ waiting now"] == "not shown"
    assert set(open_page("bills").dataframe[0].value["account"]) == {"acme"}
