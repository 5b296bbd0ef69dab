"""What pages show of meters that a configuration declares: each with its own digits, whichever release wrote the rows.

The rows are those of tests.dashboard.seeding: `gpu_seconds` has decimals, and one row in five is of an earlier release.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg

from dashboard.backend import Backend
from dashboard.queries.lateness import read_lateness
from dashboard.queries.requests import read_window_requests
from dashboard.settings import Settings
from jobs.runtime.postgres.meters_table import declare
from metering.meters import DEFAULT, Declaration
from tests.dashboard.conftest import Pages, texts
from tests.dashboard.seeding import DECLARED, METERS, MINUTE, UNIT_PRICES, Day, is_earlier, seed, usage_of

MODEL = "small-1"


def numbers(shown: Iterable[Any]) -> list[Decimal]:
    return [Decimal(str(text).replace(",", "")) for text in shown]


def of_bill(day: Day) -> list[dict[str, Any]]:
    """Rows behind the bill's lines of acme and MODEL."""
    rows = [row for row in usage_of(day) if (row["account"], row["model"]) == ("acme", MODEL)]
    return [row for row in rows if f"{row['event_time'].astimezone(ZoneInfo('Europe/Berlin')):%Y-%m}" == month_of(day)]


def month_of(day: Day) -> str:
    return f"{day.now:%Y-%m}"


def test_a_window_shows_declared_meters_with_their_decimals_and_whole_numbers_without(
    open_page: Pages, seeded: str, day: Day
) -> None:
    table = open_page("windows").dataframe[0].value
    rows = list(usage_of(day))
    assert sum(numbers(table["gpu seconds"])) == sum(row["gpu_seconds"] or 0 for row in rows)
    assert table["images"].sum() == sum(row["images"] or 0 for row in rows)
    assert table["requests"].sum() == sum(row["requests"] for row in rows)
    assert not [text for text in table["gpu seconds"] if "." in text and text.endswith("0")]
    assert list(table.columns).index("images") > list(table.columns).index("cached tokens")


def test_of_fifty_meters_a_page_has_columns_for_those_with_usage(open_page: Pages, seeded: str, day: Day) -> None:
    before = open_page("windows").dataframe[0].value
    with psycopg.connect(seeded) as connection:
        declare(connection, [*DECLARED, *(Declaration(f"meter_{n}", "unit", f"meter_{n}") for n in range(44))])
    assert list(open_page("windows").dataframe[0].value.columns) == list(before.columns)


def test_usage_of_a_meter_that_is_declared_no_more_is_still_shown(open_page: Pages, seeded: str) -> None:
    with psycopg.connect(seeded) as connection:
        declare(connection, DEFAULT)
    assert "gpu seconds" in open_page("windows").dataframe[0].value
    assert "gpu_seconds" in set(open_page("bills", account="acme").dataframe[1].value["meter"])


def test_a_bills_line_of_decimals_is_exact_and_leads_to_its_requests(open_page: Pages, seeded: str, day: Day) -> None:
    price = 10 + METERS.index("gpu_seconds")
    page = open_page(
        "bills", account="acme", month=month_of(day), line=f"{MODEL} · gpu_seconds · price lsn {price} · EUR"
    )
    rows = [row for row in of_bill(day) if row["gpu_seconds"]]
    seconds = sum(row["gpu_seconds"] for row in rows)
    lines, windows, requests = (table.value for table in page.dataframe[1:4])
    (line,) = (row for _, row in lines.iterrows() if (row["model"], row["meter"]) == (MODEL, "gpu_seconds"))
    assert line["unit"] == "second"
    assert line["quantity"] == f"{seconds.normalize():,f}"
    assert Decimal(line["amount"]) == seconds * UNIT_PRICES["gpu_seconds"]
    assert "per second, plan plan-acme" in texts(page)
    assert sum(numbers(windows["quantity"])) == seconds
    assert dict(zip(requests["request"], numbers(requests["gpu seconds"]), strict=True)) == {
        row["request_id"]: row["gpu_seconds"] for row in rows
    }


def test_totals_of_a_bill_omit_contained_meters_and_other_units(open_page: Pages, seeded: str, day: Day) -> None:
    bills = open_page("bills", month=month_of(day)).dataframe[0].value.set_index("account")
    with psycopg.connect(seeded) as connection:
        found = connection.execute(
            """
            SELECT sum(quantity) FILTER (WHERE meter IN ('input_tokens', 'output_tokens')),
                   sum(quantity) FILTER (WHERE meter = 'requests')
            FROM usage_windows JOIN catalog.accounts USING (account)
            WHERE account = 'acme' AND date_trunc('month', window_start AT TIME ZONE timezone) = %s
            """,
            [datetime(day.now.year, day.now.month, 1)],  # noqa: DTZ001  # local time of the account's zone
        ).fetchone()
    assert (bills.loc["acme", "tokens"], bills.loc["acme", "requests"]) == found


def test_rows_of_both_releases_are_shown_alike(database: str, tables: Path, day: Day) -> None:
    seed(database, tables, day)
    rows = {row["lsn"]: row for row in usage_of(day) if row["outcome"] == "matched"}
    backend = Backend(Settings(postgres_url=database, tables=str(tables)))
    starts = {row["event_time"].replace(second=0, microsecond=0) for row in rows.values()}
    found = [one for start in starts for one in read_window_requests(backend, start, None, None) if one.lsn in rows]
    assert {one.lsn for one in found} == rows.keys()
    for one in found:
        row = rows[one.lsn]
        amounts = [row[f"{meter}_amount"] for meter in METERS if row[f"{meter}_amount"] is not None]
        assert one.quantities == {meter: row[meter] for meter in METERS if meter in one.quantities}
        assert set(one.quantities) == set(METERS[:4] if is_earlier(one.lsn) else METERS)
        assert one.amount == (sum(amounts) if amounts else None)


def test_money_that_would_have_been_late_is_exact(database: str, tables: Path, day: Day) -> None:
    seed(database, tables, day)
    _, found = read_lateness(Backend(Settings(postgres_url=database, tables=str(tables))), None).later_than(timedelta())
    expected: dict[str, Decimal] = {}
    for row in usage_of(day):
        late = row["received_at"] >= row["event_time"].replace(second=0, microsecond=0) + MINUTE
        if late and row["outcome"] in ("matched", "abandoned"):
            amount = sum((row[f"{meter}_amount"] or Decimal(0) for meter in METERS), Decimal(0))
            expected[row["currency"]] = expected.get(row["currency"], Decimal(0)) + amount
    assert found == expected
