"""The page Models: what a view by model measured in the last hour, beside the same hour last week."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
import yaml
from datasketches import hll_sketch, kll_doubles_sketch, tgt_hll_type  # type: ignore[import-untyped]
from streamlit.testing.v1 import AppTest

from dashboard.backend import Backend
from dashboard.model_columns import roles_of
from dashboard.queries.models import Models, ModelsFilter, read_models
from dashboard.views import models as page_of_models
from dashboard.views.models import EXAMPLE
from jobs.analytics.config import AnalyticsConfig
from jobs.queries.views import PANE_BYTES
from jobs.view_measures import KLL_RANK_ERROR, LG_HLL
from tests.dashboard.conftest import Pages, texts
from tests.database_rows import progress, window, write_windows
from tests.pipelines.panes import fold, pane

MINUTE, WEEK = timedelta(minutes=1), timedelta(days=7)
MEASURES: dict[str, Any] = {
    "requests": "count",
    "errors": {"count": {"where": {"status": ["error", "cancelled"]}}},
    "users": {"distinct": "user_id"},
    "latency_ms": {"percentiles": "latency_ms"},
    "tokens": {"sum": "output_tokens"},
}


def config(*by: str, **more: Any) -> AnalyticsConfig:
    return AnalyticsConfig.model_validate(
        {"views": {"health": {"of": "outcomes", "by": by, "measures": MEASURES, **more}}}
    )


BY_ACCOUNT = config("model", "account")


def sketched(users: range, latencies: Iterable[int]) -> dict[str, str]:
    distinct, ranks = hll_sketch(LG_HLL, tgt_hll_type.HLL_8), kll_doubles_sketch(200)
    for user in users:
        distinct.update(f"user-{user}")
    for latency in latencies:
        ranks.update(float(latency))
    found = {"users": distinct.serialize_updatable(), "latency_ms": ranks.serialize()}
    return {name: base64.b64encode(sketch).decode() for name, sketch in found.items()}


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC).replace(second=0, microsecond=0)


def measured(
    database: str, now: datetime, declared: AnalyticsConfig = BY_ACCOUNT, *keys: tuple[str | None, ...]
) -> None:
    """Three models: `large` twice as much as last week, `small` failing, `old` gone; each of two accounts or keys."""
    keys = keys or (("acme",), ("globex",))
    with psycopg.connect(database) as connection:
        fold(
            connection,
            declared,
            *(
                pane(declared, "health", now - ago, [model, *rest], requests, errors=errors, tokens=tokens, **sketches)
                for place, rest in enumerate(keys)
                for model, ago, requests, errors, tokens, sketches in (
                    ("large", 10 * MINUTE, 150, "0", "150.25", sketched(range(place, 20 + place), range(1, 101))),
                    ("large", 30 * MINUTE, 50, "1", "50", sketched(range(20), range(101, 201))),
                    ("large", 61 * MINUTE, 999, "9", "999", sketched(range(100, 900), range(9_000, 9_999))),
                    ("large", WEEK + 10 * MINUTE, 100, "1", "100", sketched(range(10), range(1, 101))),
                    ("small", 3 * MINUTE, 40, "10", "40", sketched(range(5), range(1, 11))),
                    ("old", WEEK + 5 * MINUTE, 7, "0", "7", sketched(range(3), range(1, 11))),
                )
            ),
        )
    progress(database, "analytics", now)


def metrics(page: AppTest) -> dict[str, tuple[str, str]]:
    return {metric.label: (metric.value, metric.delta) for metric in page.metric}


def listed(page: AppTest) -> dict[str, dict[str, Any]]:
    assert not page.exception, [error.value for error in page.exception]
    return {row["model"]: row for row in page.dataframe[0].value.to_dict("records")}


def test_without_a_view_by_model_the_page_shows_how_to_declare_one(
    open_page: Pages, connected: str, database: str, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Declared as shown, a view is shown, to those who may see some accounts, too."""
    page = open_page("models")
    assert "no data yet]" in page.markdown[0].value
    assert "analytics has not run on this database yet" in texts(page)
    assert [code.value for code in page.code] == [EXAMPLE.strip()]
    assert not page.dataframe
    declared = AnalyticsConfig.model_validate(yaml.safe_load(EXAMPLE))
    with psycopg.connect(database) as connection:
        fold(connection, declared, pane(declared, "model_health", now - MINUTE, ["large", "acme"], 1))
    progress(database, "analytics", now)
    assert listed(open_page("models"))["large"]["requests"] == 1
    monkeypatch.setenv("WEIR_ACCOUNTS", "acme")
    assert listed(open_page("models"))["large"]["requests"] == 1


def test_each_model_has_its_use_health_and_percentiles_beside_last_week(
    open_page: Pages, connected: str, database: str, now: datetime
) -> None:
    measured(database, now)
    write_windows(
        database,
        window(now - 10 * MINUTE, 300, account="acme", model="large", unit_price=Decimal("0.0000001")),
        window(now - 61 * MINUTE, 999, account="acme", model="large", unit_price=Decimal("0.0000001")),
        window(now - 3 * MINUTE, 80, account="acme", model="small", unit_price=Decimal(1), currency="USD"),
    )
    page = open_page("models")
    assert ":green-badge[:material/play_arrow: live]" in page.markdown[0].value
    rows = listed(page)
    assert [*rows] == ["large", "small", "old"]
    large, small, old = rows.values()
    assert (large["requests"], large["requests change (%)"], large["tokens"]) == (400, 100.0, "400.5")
    assert (large["errors (%)"], large["errors last week (%)"]) == (0.5, 1.0)
    assert (large["users"], large["users change (%)"]) == (21, 110.0)
    assert large["latency ms p50"] == pytest.approx(100, abs=200 * KLL_RANK_ERROR)
    assert large["latency ms p95"] == pytest.approx(190, abs=200 * KLL_RANK_ERROR)
    assert large["latency ms p95 change (%)"] == pytest.approx(100, abs=6)
    assert (large["amount (EUR)"], small["amount (USD)"], small["errors (%)"]) == ("0.00003", "80.00", 25.0)
    assert (old["requests"], old["requests change (%)"], old["users"]) == (0, -100.0, 0)
    figures = metrics(page)
    assert figures["Requests"] == ("480", "+124.3 %")
    assert figures["Errors"] == ("4.58 %", "+3.6 points")
    assert figures["Users"] == ("21", "+110.0 %")


def test_other_keys_of_a_view_merge_so_that_a_user_of_two_regions_is_one(
    open_page: Pages, connected: str, database: str, now: datetime
) -> None:
    measured(database, now, config("model", "region"), ("eu",), ("us",))
    page = open_page("models")
    # 20 of them are in both regions.
    assert (listed(page)["large"]["requests"], listed(page)["large"]["users"]) == (400, 21)
    assert metrics(page)["Users"][0] == "21"


def test_a_view_that_measures_for_less_than_a_week_has_nothing_beside_it(
    open_page: Pages, connected: str, database: str, now: datetime
) -> None:
    measured(database, now)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE analytics_views SET since = %s", [now - 20 * MINUTE])
    page = open_page("models")
    rows = listed(page)
    assert (rows["large"]["requests"], rows["large"]["requests change (%)"]) == (300, None)
    assert "old" not in rows
    assert "(measured for 20 min)" in texts(page)
    assert "the view was not measured a week ago" in texts(page)


def test_who_may_see_some_accounts_sees_their_outcomes_and_no_view_that_adds_up_all(
    open_page: Pages, connected: str, database: str, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(database, now)
    assert metrics(open_page("models", account="acme"))["Requests"][0] == "240"
    monkeypatch.setenv("WEIR_ACCOUNTS", "acme")
    page = open_page("models")
    assert metrics(page)["Requests"][0] == "240"
    assert "globex" not in texts(page)
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM analytics_panes; DELETE FROM analytics_views; DELETE FROM positions")
        connection.execute("DELETE FROM jobs")
    measured(database, now, config("model"), ())
    monkeypatch.delenv("WEIR_ACCOUNTS")
    assert "its numbers are not those of the chosen account" in texts(open_page("models", account="acme"))
    assert "chosen account" not in texts(open_page("models"))
    monkeypatch.setenv("WEIR_ACCOUNTS", "acme")
    hidden = open_page("models", view="health")
    assert not hidden.dataframe
    assert "One by model and account would be" in texts(hidden)


def test_old_panes_of_a_silent_analytics_are_stale_and_an_hour_without_outcomes_says_so(
    open_page: Pages, connected: str, database: str, now: datetime
) -> None:
    measured(database, now)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE jobs SET updated_at = now() - interval '10 minutes'")
    page = open_page("models")
    assert "stale" in page.markdown[0].value
    assert listed(page)["large"]["requests"] == 400
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE positions SET frontier = frontier + interval '3 hours'")
    assert "No outcome in this hour, nor in the same hour last week." in texts(open_page("models"))


def test_what_would_be_too_much_to_merge_is_not_merged_and_the_most_is(
    open_page: Pages, connected: str, database: str, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_most(merged: int) -> Callable[[Backend, ModelsFilter], Models]:
        return lambda backend, chosen: read_models(backend, chosen, merged)

    measured(database, now)
    with psycopg.connect(database) as connection:
        shown = "window_start NOT BETWEEN now() - interval '120 minutes' AND now() - interval '60 minutes'"
        of_pane = f"sum({PANE_BYTES} + pg_column_size(measures))"
        [weight] = connection.execute(f"SELECT {of_pane} FROM analytics_panes WHERE {shown}").fetchone() or [0]
    monkeypatch.setattr(page_of_models, "read_models", at_most(weight))
    assert listed(open_page("models"))["large"]["requests"] == 400
    monkeypatch.setattr(page_of_models, "read_models", at_most(weight - 1))
    page = open_page("models")
    assert "too many keys for a page" in texts(page)
    assert not page.dataframe


def test_a_view_of_other_measures_shows_those_that_it_has(
    open_page: Pages, connected: str, database: str, now: datetime
) -> None:
    declared = AnalyticsConfig.model_validate(
        {"views": {"health": {"of": "outcomes", "by": ["model"], "measures": {"requests": {"sum": "output_tokens"}}}}}
    )
    with psycopg.connect(database) as connection:
        fold(connection, declared, pane(declared, "health", now - MINUTE, [None], 12))
    progress(database, "analytics", now)
    assert listed(open_page("models")) == {"unknown": {"model": "unknown", "requests": 12}}


def test_how_fast_a_model_is_comes_before_the_time_between_its_outcomes_wherever_that_is_declared() -> None:
    (view,) = config("model", measures={"gap_ms": "gaps", **MEASURES}).declared_views
    assert roles_of(view).percentiles == ("latency_ms", "gap_ms")
