"""The closed sets that the database holds, and states that SQL gives: each is what its home in Python says.

Method: the listing, the dashboard and the gauges are asked at every border of a window and of a session, and while
nobody knows the frontier, the grace or the gap; the rule says what each must answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from psycopg.types.json import Jsonb

from catalog.price_jumps import Compared
from cli.reading import read_only
from cli.sessions import SessionQuery, session_rows
from dashboard.backend import Backend
from dashboard.queries.sessions import read_history, read_open_sessions
from dashboard.queries.sources import read_sources
from dashboard.queries.windows import WindowFilter, read_windows
from dashboard.settings import Settings
from jobs.ingestion.config import IngestionConfig
from jobs.queries.periods import Window as Length
from jobs.queries.usage import UsageQuery, usage_rows
from jobs.runtime.clock import MachineClock
from jobs.runtime.postgres.gauges import DatabaseGauges
from jobs.streams import UNIT_PRICE
from metering.invoices import Kind, Rounding, State
from metering.lateness import WindowState, window_state
from metering.period_meters import Aggregation, Period
from metering.sessions import Session, SessionState
from metering.vocabulary import BILLED, CORRECTING, Decision, End, Isolation, SourceState
from metering.windows import Window
from tests.database_rows import progress, totals_of, window, write
from webhooks.kinds import Kind as EndpointKind
from webhooks.outcomes import State as DeliveryState

T0 = datetime(2026, 3, 1, 10, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MICROSECOND = timedelta(microseconds=1)
CHECKED: Mapping[str, set[str]] = {
    "meters.aggregation": set(Aggregation),
    "meters.period": set(Period),
    "corrections.period": set(Period),
    "stragglers.decision": set(Decision),
    "webhook_deliveries.state": set(DeliveryState),
    "webhook_endpoints.kind": set(EndpointKind),
    "webhook_removals.state": set(DeliveryState),
    # By retention, or with the endpoint.
    "webhook_removals.cause": {"age", "endpoint"},
    "stragglers.hold_expires": {Decision.CORRECT, Decision.DROP},
    "corrections.decision": set(BILLED),
    "corrections.cause": set(CORRECTING),
    "stragglers.cause": set(CORRECTING),
    "catalog.decisions.decision": {Decision.APPROVE, Decision.REJECT},
    "catalog.price_jumps.compared_with": set(Compared),
    "exits.how": set(End),
    "isolated_records.reason": set(Isolation),
    "catalog.limits.period": {Length.DAY, Length.MONTH},
    "threshold_changes.period": {Length.DAY, Length.MONTH},
    "usage_dimensions.period": {Length.DAY, Length.MONTH},
    "invoices.kind": set(Kind),
    "invoices.rounding": set(Rounding),
    "invoice_events.state": set(State),
    # Debezium's own: created, updated, read by a snapshot.
    "catalog_outbox.op": {"c", "u", "r"},
}


def test_each_check_constraint_has_the_values_of_its_enum(postgres_url: str) -> None:
    lists = "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'c'"
    with psycopg.connect(postgres_url) as connection:
        found = {
            f"{table}.{column[1]}": set(re.findall(r"'([\w-]+)'::text", text))
            for table, text in connection.execute(lists).fetchall()
            if (column := re.search(r"\((\w+) = ANY \(ARRAY\[", text))
        }
    assert found == CHECKED


def test_a_unit_price_has_the_same_digits_in_the_catalog_as_in_the_tables(database: str) -> None:
    """The column takes any digits, so that a price with too many is refused, and not rounded."""
    most = Decimal(10) ** (UNIT_PRICE.precision - UNIT_PRICE.scale) - Decimal(1).scaleb(-UNIT_PRICE.scale)
    price = {"plan": "p", "model": "m", "meter": "requests", "currency": "EUR", "effective_from": datetime.now(UTC)}
    write(database, "catalog.plans", {"plan": "p", "name": ""})
    write(database, "catalog.prices", {**price, "unit_price": most})
    with psycopg.connect(database, autocommit=True) as connection:
        assert connection.execute("SELECT unit_price FROM catalog.prices").fetchall() == [(most,)]
        for other in (most + Decimal(1).scaleb(-UNIT_PRICE.scale), Decimal(1).scaleb(-UNIT_PRICE.scale - 1)):
            with pytest.raises(psycopg.errors.DatabaseError, match="it must"):
                connection.execute("UPDATE catalog.prices SET unit_price = %s", [other])


class Asked:
    """Everybody who says in which state something is, asked about one database."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._backend = Backend(Settings(postgres_url=database))

    def reached(self, job: str, frontier: datetime | None, config: dict[str, Any]) -> None:
        with psycopg.connect(self._database) as connection:
            connection.execute("UPDATE positions SET frontier = %s WHERE job = %s", [frontier, job])
            connection.execute("UPDATE jobs SET config = %s WHERE job = %s", [Jsonb(config), job])

    def gauges(self, job: str) -> CollectorRegistry:
        read = DatabaseGauges(job, self._database, totals_of(job), MachineClock())
        registry = CollectorRegistry()
        registry.register(read)
        return registry

    def states_of_windows(self) -> tuple[list[str], list[str]]:
        """By the listing and by the dashboard, in the order of models."""
        with read_only(self._database) as connection:
            listed = [(str(row["model"]), str(row["state"])) for row in usage_rows(connection, UsageQuery())]
        hours = int((datetime.now(UTC) - T0) / timedelta(hours=1)) + 1
        shown = read_windows(self._backend, WindowFilter(hours=hours)).windows
        return [state for _, state in sorted(listed)], [one.state for one in sorted(shown, key=lambda w: w.key or "")]

    def states_of_sessions(self) -> tuple[list[str], list[str], int]:
        """By the listing and by the dashboard, in order; and how many are open now."""
        with read_only(self._database) as connection:
            listed = [str(row["state"]) for row in session_rows(connection, SessionQuery(retracted=True))]
        history = read_history(self._backend, "a", "u", retracted=True)
        return listed, [one.state for one in reversed(history)], read_open_sessions(self._backend, None).open_now


WINDOW = Window(T0, T0 + MINUTE)
GRACE = timedelta(minutes=5)


@pytest.mark.parametrize("grace", [GRACE, timedelta(), None], ids=str)
def test_a_window_has_the_same_state_in_every_reader(database: str, grace: timedelta | None) -> None:
    progress(database, "billing", None)
    # The dashboard shows one row per account and minute: each in an account, and a model, of its own.
    rows = [
        window(T0, corrected=corrected, account=f"a{corrected}", model=f"m{corrected}") for corrected in (False, True)
    ]
    write(database, "usage_windows", *rows)
    asked, config = Asked(database), {} if grace is None else {"grace_seconds": grace.total_seconds()}
    borders = [WINDOW.end, *([] if grace is None else [WINDOW.end + grace]), WINDOW.end + timedelta(days=9)]
    for frontier in [None, *(border + step for border in borders for step in (-MICROSECOND, timedelta(), MICROSECOND))]:
        asked.reached("billing", frontier, config)
        expected = [window_state(WINDOW, grace, frontier, corrected=corrected) for corrected in (False, True)]
        assert asked.states_of_windows() == (expected, expected), (frontier, grace)
        is_known = frontier is not None and grace is not None
        if frontier is None or frontier < T0 + timedelta(hours=1):
            shown = asked.gauges("billing")
            found = {s: shown.get_sample_value("weir_usage_windows", {"state": s}) for s in WindowState}
            assert found == ({s: Counter(expected)[s] for s in WindowState} if is_known else dict.fromkeys(WindowState))


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("gap", [timedelta(minutes=30), timedelta(seconds=1), None], ids=str)
def test_a_session_has_the_same_state_in_every_reader(database: str, gap: timedelta | None) -> None:
    progress(database, "sessionization", None)
    session = Session(T0, T0 + MINUTE, 2)
    own = {"account": "a", "user_id": "u", "session_start": session.start, "session_end": session.end, "events": 2}
    write(database, "sessions", {**own, "version": 1, "retracted_at": T0}, {**own, "version": 2})
    asked, config = Asked(database), {} if gap is None else {"session_gap_seconds": gap.total_seconds()}
    borders = [session.end, *([] if gap is None else [session.end + gap]), datetime.now(UTC) + timedelta(days=9)]
    for frontier in [None, *(border + step for border in borders for step in (-MICROSECOND, timedelta(), MICROSECOND))]:
        asked.reached("sessionization", frontier, config)
        live = SessionState.CLOSED if session.closed(gap, frontier) else SessionState.OPEN
        expected, is_open = [SessionState.RETRACTED, live], live is SessionState.OPEN
        assert asked.states_of_sessions() == (expected, expected, is_open), (frontier, gap)
        found = asked.gauges("sessionization").get_sample_value("weir_open_sessions")
        assert found == (None if frontier is None or gap is None else is_open)


@pytest.mark.parametrize("started_with", [timedelta(seconds=1), timedelta(days=1)], ids=str)
def test_the_latest_gap_decides_which_sessions_are_closed(database: str, started_with: timedelta) -> None:
    """A driver that ends before it decides anything closes nothing, and opens nothing again."""
    progress(database, "sessionization", None)
    own = {"account": "a", "user_id": "u", "session_start": T0, "events": 2, "version": 1}
    write(database, "sessions", {**own, "session_end": T0 + MINUTE})
    gap, kept_before = timedelta(minutes=30), T0 - MINUTE
    write(database, "session_gaps", {"first_position": 1, "gap": gap, "closed_before": kept_before})
    asked = Asked(database)
    for past_end, state in ((gap, SessionState.OPEN), (gap + MICROSECOND, SessionState.CLOSED)):
        frontier, is_open = T0 + MINUTE + past_end, state is SessionState.OPEN
        asked.reached("sessionization", frontier, {"session_gap_seconds": started_with.total_seconds()})
        assert asked.states_of_sessions() == ([state], [state], is_open)
        assert asked.gauges("sessionization").get_sample_value("weir_open_sessions") == is_open
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE session_gaps SET gap = '1 day', closed_before = %s", [T0 + 2 * MINUTE])
    assert asked.states_of_sessions() == ([SessionState.CLOSED], [SessionState.CLOSED], 0)


def test_a_source_has_the_same_state_in_every_reader(database: str) -> None:
    config = IngestionConfig()
    limits = {
        "silent": config.source_silent_after_seconds,
        "once retired": config.source_seen_once_retired_after_seconds,
        "retired": config.source_retired_after_seconds,
    }
    rows = [
        {
            "source": f"{limit} {step} {heard_for}",
            "first_seen_at": (last := T0 - timedelta(seconds=limits[limit]) + step) - heard_for,
            "last_seen_at": last,
        }
        for limit in limits
        for step in (-MICROSECOND, timedelta(), MICROSECOND)
        for heard_for in (timedelta(), MINUTE, MINUTE + MICROSECOND)
    ]
    write(database, "sources", *rows)
    asked = Asked(database)
    for frontier in (T0, None):
        reported = {"frontier": frontier and frontier.isoformat()}
        with psycopg.connect(database) as connection:
            connection.execute("DELETE FROM jobs")
        progress(database, "ingestion", None, report=reported)
        asked.reached("ingestion", None, config.model_dump(mode="json"))
        shown = read_sources(Backend(Settings(postgres_url=database)))
        silent = sum(map(shown.is_silent, shown.sources))
        active = len(rows) - silent - sum(map(shown.is_retired, shown.sources))
        gauges = asked.gauges("ingestion")
        found = {state: gauges.get_sample_value("weir_sources", {"state": state}) for state in SourceState}
        assert found == ({"active": active, "silent": silent} if frontier else dict.fromkeys(SourceState))
        assert (silent > 0) == (frontier is not None)
