"""The page Watch: thresholds and how near accounts are to them, matches of patterns with versions, hits of watches."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from streamlit.testing.v1 import AppTest

from dashboard.backend import Backend
from dashboard.queries.thresholds import Thresholds, read_thresholds
from dashboard.views import thresholds as panel_of_thresholds
from dashboard.views.hits import EXAMPLE as A_WATCH
from dashboard.views.matches import EXAMPLE as A_PATTERN
from dashboard.views.thresholds import EXAMPLE as A_LIMIT
from jobs.queries.limit_lists import status_rows
from jobs.queries.patterns import Matches, match_rows
from tests.dashboard.conftest import Pages, texts
from tests.dashboard.watched import MINUTE, crossed, hits, limit, match, pattern, watch
from tests.database_rows import progress, window, write, write_windows


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC).replace(second=0, microsecond=0)


@pytest.fixture
def running(connected: str, database: str, now: datetime) -> str:
    """A database of two accounts of a plan, in which billing and analytics report; gives the owner's address."""
    write(database, "catalog.plans", {"plan": "standard", "name": "Standard"})
    for account in ("acme", "globex"):
        row = {"account": account, "name": account, "plan": "standard", "currency": "EUR"}
        write(database, "catalog.accounts", {**row, "effective_from": now - timedelta(days=60)})
    for job in ("billing", "analytics"):
        progress(database, job, now)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE jobs SET config = config || %s WHERE job = 'analytics'", [Jsonb({"watches": True})])
    return database


def table(page: AppTest, column: str) -> list[dict[str, Any]]:
    """The rows of the table that has a column of this name."""
    assert not page.exception, [error.value for error in page.exception]
    found = [frame.value.to_dict("records") for frame in page.dataframe if column in frame.value]
    return found[0] if found else []


def near(page: AppTest) -> list[tuple[Any, ...]]:
    names = ("account", "of", "state", "used", "next threshold", "near (%)", "crossed")
    return [tuple(None if row[name] != row[name] else row[name] for name in names) for row in table(page, "near (%)")]


def test_empty_panels_say_how_to_set_a_limit_declare_a_pattern_and_add_a_watch(
    open_page: Pages, connected: str, database: str
) -> None:
    page = open_page("watch")
    assert [code.value for code in page.code] == [A_LIMIT.strip(), A_PATTERN.strip(), A_WATCH.strip()]
    assert "billing has not run on this database yet" in texts(page)
    assert "analytics has not run on this database yet" in texts(page)
    assert not page.dataframe


def test_the_account_that_is_nearest_to_its_next_threshold_comes_first(
    open_page: Pages, running: str, now: datetime
) -> None:
    """A step counts as the limit does; when all are reached it is the highest that was exceeded."""
    limit(running, now, plan="standard", meter="requests", quantity=1_000, steps=[Decimal(500), Decimal(800)])
    limit(running, now, account="globex", meter="requests", quantity=None, steps=[Decimal("0.5"), Decimal(250)])
    limit(running, now, plan="standard", currency="EUR", amount=Decimal("123.45"))
    limit(running, now, account="acme", meter="images", quantity=0)
    write_windows(
        running,
        window(now, 600, account="acme", unit_price=Decimal("0.1")),
        window(now, 300, account="globex", unit_price=Decimal("0.00000003")),
    )
    crossed(running, now, "acme", Decimal(500))
    page = open_page("watch")
    assert ":green-badge[:material/play_arrow: live]" in page.markdown[0].value
    assert near(page) == [
        ("globex", "requests", "◐ step reached", "300", "250", pytest.approx(120), None),
        ("acme", "requests", "◐ step reached", "600", "800", pytest.approx(75), "500"),
        ("acme", "EUR", "○ below", "60", "123.45", pytest.approx(60 / 123.45 * 100), None),
        ("globex", "EUR", "○ below", "0.000009", "123.45", pytest.approx(0.000009 / 123.45 * 100), None),
        ("acme", "images", "● limit reached", "0", None, None, None),
    ]
    shown = {metric.label: metric.value for metric in page.metric}
    assert shown == {
        "Limits in force": "5",
        "Limit reached": "1",
        "Step reached": "2",
        "At 80 % or more of the next": "0",
    }
    with psycopg.connect(running, row_factory=dict_row) as connection:
        listed = list(status_rows(connection, [], now))
    assert {(row["account"], row["of"]): row["used"] for row in table(page, "near (%)")} == {
        (row["account"], row["meter"] or row["currency"]): f"{row['used'].normalize():f}" for row in listed
    }


def test_a_limit_of_a_model_is_named_and_one_that_recurs_counts_from_its_last_multiple(
    open_page: Pages, running: str, now: datetime
) -> None:
    limit(running, now, account="acme", meter="requests", model="large-1", quantity=1_000)
    limit(running, now, account="globex", meter="requests", quantity=None, every=Decimal(200))
    limit(running, now, account="globex", meter="output_tokens", quantity=None, every=Decimal(200))
    limit(running, now, account="globex", meter="images", quantity=None, every=Decimal(1))
    write_windows(
        running,
        window(now, 700, account="acme", model="large-1"),
        window(now, 500, account="globex"),
        window(now, 1_010, account="globex", meter="output_tokens"),
        window(now, 101, account="globex", meter="images"),
    )
    crossed(running, now, "acme", Decimal(500), model="large-1")
    page = open_page("watch")
    assert near(page) == [
        ("globex", "images", "◐ step reached", 101, 100, pytest.approx(101), None),
        ("acme", "requests of large-1", "◐ step reached", 700, 1_000, pytest.approx(70), "500"),
        ("globex", "requests", "○ below", 500, 600, pytest.approx(50), None),
        ("globex", "output tokens", "○ below", 1_010, 1_200, pytest.approx(5), None),
    ]
    assert {metric.label: metric.value for metric in page.metric}["At 80 % or more of the next"] == "0"
    assert [row["of"] for row in table(page, "what")] == ["requests of large-1"]


def test_a_limit_of_a_team_is_named_and_says_how_much_of_usage_is_in_no_team(
    open_page: Pages, running: str, now: datetime
) -> None:
    of: dict[str, Any] = {"dimension": "team", "dimension_value": "search"}
    limit(running, now, account="acme", meter="requests", period="P1D", quantity=1_000, **of)
    write_windows(running, window(now - MINUTE, 700, account="acme"), window(now - 2 * MINUTE, 200, account="acme"))
    with psycopg.connect(running) as connection:
        connection.execute('UPDATE usage_days SET dimensions = \'{"team": "search"}\'')
        connection.execute(
            "INSERT INTO usage_days (account, day, meter, is_other, quantity, first_window, last_window_end)"
            " SELECT account, day, meter, true, 50, first_window, last_window_end FROM usage_days LIMIT 1"
        )
    crossed(running, now, "acme", Decimal(500), period="P1D", **of)
    page = open_page("watch")
    [row] = table(page, "near (%)")
    assert (row["of"], row["used"], row["and perhaps"], row["near (%)"]) == (
        "requests of team search",
        900,
        50,
        pytest.approx(90),
    )
    assert [row["of"] for row in table(page, "what")] == ["requests of team search"]


def test_a_limit_that_rolls_counts_the_last_hours_until_f_and_says_from_when_on(
    open_page: Pages, running: str, now: datetime
) -> None:
    limit(running, now, account="acme", meter="requests", period="PT3H", quantity=1_000)
    hour = now.replace(minute=0)
    begins = hour - timedelta(hours=2)
    write_windows(running, window(begins, 700, account="acme"), window(begins - MINUTE, 900, account="acme"))
    crossed(running, now, "acme", Decimal(500), period="PT3H", first_day="1970-01-01")
    page = open_page("watch")
    assert near(page) == [("acme", "requests", "◐ step reached", 700, 1_000, pytest.approx(70), "500")]
    [row] = table(page, "near (%)")
    assert (row["period"], row["since"]) == ("last 3 hours", f"{begins.isoformat()[:-6]}Z")
    assert [row["period"] for row in table(page, "what")] == ["last 3 hours"]


def test_a_total_of_very_many_digits_is_compared_with_its_limit_and_multiples(
    open_page: Pages, running: str, now: datetime
) -> None:
    sent, above = 98_765_432_109_876_543_210_987_654_321_098, Decimal("98765432109876543210987654321099.5")
    limit(running, now, account="acme", meter="requests", quantity=1, every=Decimal("0.000001"))
    limit(running, now, account="globex", meter="requests", quantity=None, every=above)
    write_windows(running, window(now, sent, account="acme"), window(now, sent, account="globex"))
    rows = {row["account"]: row for row in table(open_page("watch"), "near (%)")}
    assert [rows["acme"][name] for name in ("state", "next threshold")] == ["● limit reached", "1"]
    assert [rows["globex"][name] for name in ("state", "next threshold")] == [
        "○ below",
        "98,765,432,109,876,543,210,987,654,321,099.5",
    ]
    with psycopg.connect(running, row_factory=dict_row) as connection:
        [percent, _] = [row["percent"] for row in status_rows(connection, [], now)]
    assert percent == Decimal("9876543210987654321098765432109800.0")


def test_crossings_and_retractions_are_listed_the_latest_first(open_page: Pages, running: str, now: datetime) -> None:
    crossed(running, now, "acme", Decimal(500), changed_at=now - 2 * MINUTE)
    crossed(running, now, "acme", Decimal(500), 2, changed_at=now - MINUTE, used=Decimal("499.5"))
    crossed(running, now, "globex", Decimal("0.25"), meter="", currency="EUR", changed_at=now)
    rows = table(open_page("watch"), "what")
    assert [(row["account"], row["of"], row["what"], row["threshold"], row["used"]) for row in rows] == [
        ("globex", "EUR", "▲ crossed", "0.25", "0.25"),
        ("acme", "requests", "▽ retracted", "500", "499.5"),
        ("acme", "requests", "▲ crossed", "500", "500"),
    ]
    assert {row["account"] for row in table(open_page("watch", account="acme"), "what")} == {"acme"}


def test_more_limits_than_a_page_adds_up_ask_for_an_account_and_crossings_stay(
    open_page: Pages, running: str, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_most(limits: int) -> Callable[[Backend, str | None], Thresholds]:
        return lambda backend, account: read_thresholds(backend, account, limits)

    limit(running, now, plan="standard", meter="requests", quantity=10)
    crossed(running, now, "acme", Decimal(10))
    monkeypatch.setattr(panel_of_thresholds, "read_thresholds", at_most(2))
    assert len(near(open_page("watch"))) == 2
    monkeypatch.setattr(panel_of_thresholds, "read_thresholds", at_most(1))
    page = open_page("watch")
    assert "Choose an account to see its limits" in texts(page)
    assert not near(page)
    assert len(table(page, "what")) == 1
    assert [row[0] for row in near(open_page("watch", account="globex"))] == ["globex"]


def test_where_analytics_has_stopped_each_watch_is_off_and_the_page_says_so(
    open_page: Pages, running: str, now: datetime
) -> None:
    watch(running, "large", "acme")
    assert [row["state"] for row in table(open_page("watch"), "condition")] == ["▶ running"]
    with psycopg.connect(running) as connection:
        connection.execute("UPDATE jobs SET state = 'stopped' WHERE job = 'analytics'")
    page = open_page("watch")
    assert [row["state"] for row in table(page, "condition")] == ["○ off"]
    assert "These watches are off: analytics does not run" in " ".join(warning.value for warning in page.warning)


def test_a_match_is_shown_as_it_is_and_with_every_version_if_asked(
    open_page: Pages, running: str, now: datetime
) -> None:
    storms, probing = pattern(running, "storms"), pattern(running, "probing", "model")
    keys = {"account": "acme", "api_key_id": "k"}
    for name, versions in (("final", 1), ("retracted", 2), ("revised", 3)):
        for version in range(1, versions + 1):
            match(running, storms, now - 10 * MINUTE, name, keys, version)
    match(running, storms, now - timedelta(hours=30), "yesterday", keys)
    # The first outcome of a burst came late: as it is now it began before the last 24 h.
    for version, hours in ((1, 23), (3, 25)):
        match(running, storms, now - timedelta(hours=hours), "burst", keys, version)
    match(running, probing, now - 5 * MINUTE, "of all", {"model": None})
    page = open_page("watch")
    assert [(row["match"], row["state"], row["keys"], row["lasted"]) for row in table(page, "match")] == [
        ("of all", "● final", "model: –", "3 min"),
        ("final", "● final", "account: acme, api_key_id: k", "3 min"),
        ("retracted", "⊘ retracted", "account: acme, api_key_id: k", "3 min"),
        ("revised", "✎ revised", "account: acme, api_key_id: k", "3 min"),
    ]
    counted = {row["pattern"]: (row["matches"], row["retracted"]) for row in table(page, "looks for")}
    assert counted == {"storms": (2, 1), "probing": (1, 0)}
    with psycopg.connect(running, row_factory=dict_row) as connection:
        standing = {row["match"] for row in match_rows(connection, Matches(start=now - timedelta(hours=24)))}
    assert standing == {row["match"] for row in table(page, "match") if row["state"] != "⊘ retracted"}
    every = table(open_page("watch", versions="every version"), "match")
    assert [(row["version"], row["state"]) for row in every if row["match"] == "revised"] == [
        (3, "✎ revised"),
        (2, "◌ replaced"),
        (1, "◌ replaced"),
    ]
    assert "yesterday" in {row["match"] for row in table(open_page("watch", hours="7d"), "match")}


def test_a_match_that_a_later_driver_found_first_is_final_and_not_revised(
    open_page: Pages, running: str, now: datetime
) -> None:
    """Versions under the third driver of analytics begin above two million."""
    storms = pattern(running, "storms")
    for name, versions in (("final", [2_000_001]), ("revised", [1, 2_000_001])):
        for version in versions:
            match(running, storms, now - 10 * MINUTE, name, {"account": "acme", "api_key_id": "k"}, version)
    shown = {row["match"]: row["state"] for row in table(open_page("watch"), "match")}
    assert shown == {"final": "● final", "revised": "✎ revised"}


def test_a_declared_pattern_without_matches_says_so(open_page: Pages, running: str) -> None:
    pattern(running, "storms")
    page = open_page("watch")
    assert "No final match began in the last 24 h." in texts(page)
    assert [row["pattern"] for row in table(page, "looks for")] == ["storms"]


def test_watches_are_listed_with_their_hits_and_what_was_taken_back_is_none(
    open_page: Pages, running: str, now: datetime
) -> None:
    hits(running, now, watch(running, "errors"), ["r-1", "r-2"], "acme")
    watch(running, "quiet", first_position=None)
    with psycopg.connect(running) as connection:
        connection.execute("UPDATE watch_hits SET net = 0 WHERE request_id = 'r-2'")
        connection.execute("UPDATE watch_hours SET hits = 1")
    page = open_page("watch")
    assert [(row["watch"], row["hits"], row["state"]) for row in table(page, "condition")] == [
        ("errors", 1, "▶ running"),
        ("quiet", 0, "◔ waiting"),
    ]
    assert [(row["request"], row["account"]) for row in table(page, "became")] == [("r-1", "acme")]
    assert not table(open_page("watch", account="globex"), "became")


def test_watches_that_nothing_runs_past_are_named_as_that(open_page: Pages, running: str) -> None:
    watch(running, "errors")
    assert not open_page("watch").warning
    with psycopg.connect(running) as connection:
        connection.execute("UPDATE jobs SET config = '{}' WHERE job = 'analytics'")
    assert "These watches are off" in texts(open_page("watch"))


def test_who_may_see_some_accounts_sees_their_limits_matches_and_hits_alone(
    open_page: Pages, running: str, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is of no single account, such as a pattern by model, is for viewers of all."""
    limit(running, now, account="", meter="requests", quantity=10)
    storms, probing = pattern(running, "storms"), pattern(running, "probing", "model")
    match(running, probing, now, "of all", {"model": "large"})
    general = watch(running, "of-all")
    for account in ("acme", "globex"):
        crossed(running, now, account, Decimal(10))
        match(running, storms, now, f"of-{account}", {"account": account, "api_key_id": "k"})
        hits(running, now, watch(running, f"only-{account}", account), [f"r-{account}"], account)
    hits(running, now, general, ["r-general"], "globex")
    monkeypatch.setenv("WEIR_ACCOUNTS", "acme")
    page = open_page("watch")
    assert [row[0] for row in near(page)] == ["acme"]
    assert {row["account"] for row in table(page, "what")} == {"acme"}
    assert [row["match"] for row in table(page, "match")] == ["of-acme"]
    assert [row["pattern"] for row in table(page, "looks for")] == ["storms"]
    assert [row["watch"] for row in table(page, "condition")] == ["only-acme"]
    assert [row["request"] for row in table(page, "became")] == ["r-acme"]
