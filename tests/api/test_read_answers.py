"""What holds of answers to reads: pages under new usage, caching by method, and what a customer is not shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from api.answers import JSON
from api.explanations import without_staff
from tests.api.serving import serving, start_ingestion
from tests.api.test_asking import QUERY, fill, get, pages, reads
from tests.database_rows import MINUTE, progress, window, write_windows

T0 = datetime(2026, 11, 1, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize("moved_to", [T0, T0 + 20 * HOUR], ids=["before", "behind"])
def test_usage_that_comes_between_two_pages_neither_repeats_nor_skips_a_line(
    bootstrap: str, database: str, moved_to: datetime
) -> None:
    """The first window of the second of three price versions moves before all others, or behind them."""
    versions = {at: window(T0 + at * HOUR, price_version=at, unit_price=at) for at in (1, 2, 3)}
    write_windows(database, *versions.values())
    progress(database, "billing", T0)
    start_ingestion(database)
    found: list[int] = []
    given: dict[str, str] = {}
    with serving(bootstrap, database) as server:
        key = reads(server)
        for moved in (2, 1, 3):
            answer = get(server, "/v1/bills", key, month="2026-11", limit=1, **given).json
            found += [row["price_version"] for row in answer["data"]]
            given = {"cursor": answer["next"]}
            with psycopg.connect(database) as session:
                session.execute("DELETE FROM usage_windows WHERE price_version = %s", [moved])
            write_windows(database, {**versions[moved], "window_start": moved_to, "window_end": moved_to + MINUTE})
        assert (found, answer["next"]) == ([1, 2, 3], None)


def test_only_what_is_fetched_is_not_modified(bootstrap: str, database: str) -> None:
    fill(database)
    start_ingestion(database)
    with serving(bootstrap, database) as server:
        key = reads(server, "acme")
        fetched = get(server, QUERY, key)
        assert get(server, QUERY, key, etag=fetched.headers["etag"]).status == 304
        for tag in ("*", fetched.headers["etag"]):
            posted = server.post(QUERY, b"{}", key, JSON, If_None_Match=tag)
            assert (posted.status, posted.json) == (200, fetched.json)
            assert "etag" not in posted.headers


def test_who_decided_on_a_straggler_and_why_is_shown_to_those_who_run_weir_alone(bootstrap: str, database: str) -> None:
    fill(database)
    with psycopg.connect(database) as session:
        session.execute("UPDATE stragglers SET decided_by = 'ann', reason = 'they pay late anyway'")
    start_ingestion(database)
    with serving(bootstrap, database) as server:
        (ours,) = pages(server, "/v1/stragglers", reads(server), account="acme")
        assert (ours["decided_by"], ours["reason"]) == ("ann", "they pay late anyway")
        (theirs,) = pages(server, "/v1/stragglers", reads(server, "acme"))
        assert theirs == {name: value for name, value in ours.items() if name not in ("decided_by", "reason")}


def test_an_explanation_for_a_customer_names_nobody_who_runs_weir() -> None:
    straggler = {"usage_lsn": 1, "decision": "drop", "decided_by": "ann", "reason": "x", "decided_lsn": 2}
    price = {"price_version": 3, "unit_price": "1", "changed_by": "ann", "changed_at": None}
    document = {"stragglers": [straggler], "prices": [price], "records": [{"reason": "future"}], "line": None}
    assert without_staff(document) == {
        "stragglers": [{"usage_lsn": 1, "decision": "drop", "decided_lsn": 2}],
        "prices": [{"price_version": 3, "unit_price": "1", "changed_at": None}],
        "records": [{"reason": "future"}],
        "line": None,
    }
