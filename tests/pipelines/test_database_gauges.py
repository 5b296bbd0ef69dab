"""Gauges that are read from the database agree with it, and show nothing that they do not know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from psycopg.types.json import Jsonb

from jobs.billing.straggler_totals import StragglerTotals
from jobs.runtime.postgres.exits import record_exit
from jobs.runtime.postgres.gauges import FRESH_SECONDS, DatabaseGauges
from metering.lateness import WindowState, window_state
from metering.vocabulary import End
from metering.windows import Window
from tests.clocks import HandClock
from tests.database_rows import progress, totals_of, window, write

F = datetime(2026, 11, 1, 12, tzinfo=UTC)
"""The frontier of every job here."""


class Shown:
    """What a scrape of one job's database gauges shows."""

    def __init__(self, name: str, database: str) -> None:
        self._clock = HandClock()
        self._gauges = DatabaseGauges(name, database, totals_of(name), self._clock)
        self._registry = CollectorRegistry()
        self._registry.register(self._gauges)

    def value(self, name: str, **labels: str) -> float | None:
        self._clock.go(FRESH_SECONDS)
        return self.value_now(name, **labels)

    def value_now(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(name, labels)

    def close(self) -> None:
        self._gauges.close()


@contextmanager
def shown(job: str, database: str) -> Iterator[Shown]:
    gauges = Shown(job, database)
    try:
        yield gauges
    finally:
        gauges.close()


def straggler(lsn: int, decision: str, amount: str | None, meter: str = "requests", **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"usage_lsn": lsn, "meter": meter, "decision": decision, "quantity": 1}
    if amount is not None:
        signed = Decimal(amount)
        row |= {"unit_price": abs(signed), "price_version": 1, "quantity": 1 if signed >= 0 else -1}
    times = {"window_start": F, "event_time": F, "received_at": F, "late_seconds": 400}
    return {**row, **times, "account": "a1", "request_id": f"r{lsn}", "currency": amount and "EUR", **values}


def test_stragglers_and_their_money_are_those_of_the_table(database: str) -> None:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    write(database, "catalog.accounts", {"account": "a1", "name": "A", "plan": "p", "currency": "USD"})
    with shown("billing", database) as gauges:
        assert gauges.value("weir_straggler_rows", meter="requests", decision="drop") == 0
        dropped = {"meter": "requests", "decision": "drop"}
        assert gauges.value("weir_straggler_amount", **dropped, currency="USD") == 0
        write(
            database,
            "stragglers",
            straggler(1, "drop", "1.25"),
            straggler(1, "drop", "0.5", "input_tokens"),
            straggler(2, "drop", "0.25"),
            straggler(3, "correct", "-4"),
            straggler(4, "drop", None),
        )
        assert gauges.value("weir_straggler_rows", **dropped) == 3
        assert gauges.value("weir_straggler_amount", **dropped, currency="EUR") == 1.5
        assert gauges.value("weir_straggler_amount", meter="requests", decision="correct", currency="EUR") == -4
        write(database, "stragglers", straggler(5, "drop", "8"))
        assert gauges.value("weir_straggler_rows", **dropped) == 4
        assert gauges.value("weir_straggler_amount", **dropped, currency="EUR") == 9.5
        assert gauges.value("weir_straggler_amount", meter="input_tokens", decision="drop", currency="EUR") == 0.5


def test_a_scrape_in_a_hurry_costs_the_database_no_reading(database: str) -> None:
    amount = {"meter": "requests", "decision": "drop", "currency": "EUR"}
    with shown("billing", database) as gauges:
        write(database, "stragglers", straggler(1, "drop", "1"))
        assert gauges.value("weir_straggler_amount", **amount) == 1
        write(database, "stragglers", straggler(2, "drop", "1"))
        assert gauges.value_now("weir_straggler_amount", **amount) == 1
        assert gauges.value("weir_straggler_amount", **amount) == 2


def test_many_stragglers_are_added_up_in_steps(database: str) -> None:
    meters = ("requests", "input_tokens")
    write(database, "stragglers", *[straggler(lsn, "drop", "1", meter) for lsn in range(1, 9) for meter in meters])
    with psycopg.connect(database) as connection, connection.cursor() as cursor:
        totals = StragglerTotals(step_rows=3)
        for _ in range(2):
            samples = {(metric.name, *labels): value for metric, labels, value in totals.read(cursor)}
            assert samples["weir_straggler_rows", "requests", "drop"] == 8
            assert samples["weir_straggler_amount", "input_tokens", "drop", "EUR"] == 8


def test_waiting_money_moves_to_its_decision_and_the_first_deadline_is_reported(database: str) -> None:
    progress(database, "billing", F)
    hour = timedelta(hours=1)
    waiting: list[dict[str, Any]] = [{"hold_until": F + hours * hour, "settled": 0} for hours in (30, 20, 25)]
    money = {"meter": "requests", "currency": "EUR"}
    with shown("billing", database) as gauges:
        assert gauges.value("weir_straggler_deadline_seconds", meter="requests") is None
        write(database, "stragglers", *[straggler(lsn, "hold", "2", **how) for lsn, how in enumerate(waiting, 1)])
        write(database, "stragglers", straggler(4, "approve", "8"))
        assert gauges.value("weir_straggler_rows", meter="requests", decision="hold") == 3
        assert gauges.value("weir_straggler_amount", **money, decision="hold") == 6
        assert gauges.value("weir_straggler_deadline_seconds", meter="requests") == 20 * 3_600
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE stragglers SET decision = 'approve', settled = 1 WHERE usage_lsn = 2")
        assert gauges.value("weir_straggler_rows", meter="requests", decision="hold") == 2
        assert gauges.value("weir_straggler_amount", **money, decision="approve") == 10
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE stragglers SET decision = 'drop', settled = usage_lsn + 1 WHERE settled = 0")
        for _ in range(2):
            assert gauges.value("weir_straggler_rows", meter="requests", decision="hold") == 0
            assert gauges.value("weir_straggler_amount", **money, decision="hold") == 0
            assert gauges.value("weir_straggler_rows", meter="requests", decision="approve") == 2
            assert gauges.value("weir_straggler_amount", **money, decision="drop") == 4
            assert gauges.value("weir_straggler_deadline_seconds", meter="requests") is None


def test_windows_are_counted_by_the_state_that_the_rules_give_them(database: str) -> None:
    progress(database, "billing", F)
    grace = timedelta(minutes=5)
    rows = [
        window(F + timedelta(minutes=minute), corrected=corrected, model=f"m{minute}-{corrected}")
        for minute in (0, -1, -3, -6, -7, -60, -61)
        for corrected in (False, True)
    ]
    write(database, "usage_windows", *rows)
    expected = Counter(
        window_state(Window(row["window_start"], row["window_end"]), grace, F, corrected=row["corrected"])
        for row in rows
        if row["window_start"] >= F - timedelta(hours=1)
    )
    with shown("billing", database) as gauges:
        assert {state: gauges.value("weir_usage_windows", state=state) for state in WindowState} == expected


def test_a_session_is_open_while_the_frontier_has_not_passed_its_end_by_the_gap(database: str) -> None:
    progress(database, "sessionization", F)
    for number, (minutes, retracted) in enumerate([(0, False), (29, False), (30, False), (31, False), (5, True)]):
        at = F - timedelta(minutes=minutes)
        times = {"session_start": at, "session_end": at, "retracted_at": F if retracted else None}
        write(database, "sessions", {"account": "a", "user_id": f"u{number}", "events": 1, "version": 1, **times})
    with shown("sessionization", database) as gauges:
        assert gauges.value("weir_open_sessions") == 3


def source(name: str, silent_seconds: float, **values: Any) -> dict[str, Any]:
    last = F - timedelta(seconds=silent_seconds)
    return {"source": name, "source_epoch": "", "first_seen_at": last, "last_seen_at": last, **values}


def ingestion_at(database: str, frontier: str | None) -> None:
    progress(database, "ingestion", None, report={"frontier": frontier})
    config = {"source_silent_after_seconds": 60, "source_retired_after_seconds": 600}
    config |= {"source_seen_once_retired_after_seconds": 120}
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE jobs SET config = %s WHERE job = 'ingestion'", [Jsonb(config)])


def test_retired_sources_do_not_count_as_silent_or_incomplete(database: str) -> None:
    ingestion_at(database, "2026-11-01T12:00:00Z")
    write(
        database,
        "sources",
        source("talks", 60, sequences="{[1,4),[6,7)}"),
        source("silent", 61, source_epoch="1", sequences="{[1,2),[5,6)}"),
        source("known and silent", 599, first_seen_at=F - timedelta(hours=1)),
        source("seen once", 121),
        source("restarted", 300, source_epoch="1", unsequenced=True),
        source("restarted", 1, source_epoch="2"),
        source("retired", 601, sequences="{[1,2),[100,101)}", unsequenced=False),
    )
    with shown("ingestion", database) as gauges:
        assert gauges.value("weir_sources", state="active") == 2
        assert gauges.value("weir_sources", state="silent") == 2
        assert gauges.value("weir_missing_sequence_numbers") == 2 + 3
        assert gauges.value("weir_unsequenced_sources") == 1


def test_unknown_types_are_shown_by_type_and_the_many_others_as_one(database: str) -> None:
    seen = {"first_seen_at": F, "last_seen_at": F}
    rows = [{"type": f"t{number}", "events": number, **seen} for number in range(1, 23)]
    write(database, "unknown_types", *rows, {"type": "", "events": 100, **seen})
    with shown("ingestion", database) as gauges:
        assert gauges.value("weir_unknown_types", type="t22") == 22
        assert gauges.value("weir_unknown_types", type="t4") == 4
        assert gauges.value("weir_unknown_types", type="t3") is None
        assert gauges.value("weir_unknown_types", type="other") == 100 + 1 + 2 + 3


def test_without_sources_none_is_silent(database: str) -> None:
    ingestion_at(database, "2026-11-01T12:00:00Z")
    with shown("ingestion", database) as gauges:
        assert gauges.value("weir_sources", state="active") == 0
        assert gauges.value("weir_sources", state="silent") == 0
        assert gauges.value("weir_missing_sequence_numbers") == 0


@pytest.mark.parametrize("ran_before", [True, False])
def test_nothing_is_shown_while_the_frontier_is_unknown(database: str, ran_before: bool) -> None:
    if ran_before:
        ingestion_at(database, None)
        progress(database, "sessionization", None)
    write(database, "sources", source("talks", 1, sequences="{[1,4),[6,7)}"))
    with shown("ingestion", database) as gauges:
        assert gauges.value("weir_missing_sequence_numbers") is None
        assert gauges.value("weir_unsequenced_sources") is None
        assert not gauges.value("weir_sources", state="active")
    with shown("sessionization", database) as gauges:
        assert gauges.value("weir_open_sessions") is None


def test_how_drivers_ended_is_counted_across_their_lives(database: str) -> None:
    record_exit(database, "joins", End.FENCED, "epoch 1 was followed by 2")
    record_exit(database, "joins", End.FENCED, "epoch 2 was followed by 3\0\ud800")
    record_exit(database, "billing", End.CRASHED, "x" * 10_000)
    with shown("joins", database) as gauges:
        assert gauges.value("weir_driver_exits", job="joins", how="fenced") == 2
        assert gauges.value("weir_driver_exits", job="joins", how="refused") == 0
        assert gauges.value("weir_driver_exits", job="billing", how="crashed") is None


def test_an_unreachable_database_is_reported_and_leaves_no_old_number(database: str) -> None:
    with shown("joins", database) as gauges:
        assert gauges.value("weir_driver_exits", job="joins", how="fenced") == 0
        assert gauges.value("weir_database_readable", job="joins") == 1
        gauges._gauges._postgres_url = "postgresql://nobody@127.0.0.1:1/none"
        assert gauges._gauges._connection is not None
        gauges._gauges._connection.close()
        assert gauges.value("weir_driver_exits", job="joins", how="fenced") is None
        assert gauges.value("weir_database_readable", job="joins") == 0


def test_an_exit_that_cannot_be_written_down_does_not_hide_why_the_driver_ended() -> None:
    record_exit("postgresql://nobody@127.0.0.1:1/none", "joins", End.CRASHED, "the database is gone")


def audited(hours_ago: float, **values: Any) -> dict[str, Any]:
    """An audit of everything that proved it."""
    began = F - timedelta(hours=hours_ago)
    return {"started_at": began, "finished_at": began, "version": "1", "is_proved": True, **values}


def found(**unexpected: int) -> dict[str, Any]:
    return {"is_proved": False, "unexpected": Jsonb(unexpected)}


DAY = {"received_from": F - timedelta(hours=24), "occurred_to": F}


def test_the_last_proof_is_reported_from_the_first_billed_usage_on(database: str) -> None:
    proved = "weir_audit_proved_timestamp_seconds"
    with shown("billing", database) as gauges:
        assert gauges.value(proved, audited="everything") is None
        batch = {"job": "billing", "epoch": 1, "next_position": 100, "records": 1, "duration_ms": 1}
        for first, hours in ((1, 90), (9, 80)):
            at = F - timedelta(hours=hours)
            write(database, "batches", {**batch, "first_position": first, "committed_at": at})
        began = (F - timedelta(hours=90)).timestamp()
        assert [gauges.value(proved, audited=each) for each in ("everything", "anything")] == [began, began]
        unfinished = {**audited(1), "finished_at": None, "is_proved": False}
        write(database, "audits", audited(7), audited(3, **DAY), audited(2, **found(I6=1)), unfinished)
        assert gauges.value(proved, audited="everything") == (F - timedelta(hours=7)).timestamp()
        assert gauges.value(proved, audited="anything") == (F - timedelta(hours=3)).timestamp()


def test_a_finding_stays_until_an_audit_of_at_least_its_period_clears_it(database: str) -> None:
    with shown("billing", database) as gauges:

        def now() -> dict[str, float | None]:
            return {each: gauges.value("weir_audit_found", check=each) for each in ("I6", "I8", "I10")}

        assert now() == {"I6": 0, "I8": 0, "I10": 0}
        write(database, "audits", audited(9, **DAY, **found(I6=3, I10=1)))
        assert now() == {"I6": 3, "I8": 0, "I10": 1}
        shorter = {**DAY, "received_from": F - timedelta(hours=23)}
        write(database, "audits", audited(8, **shorter), audited(8, **DAY, is_proved=False, failure="x"))
        write(database, "audits", {**audited(8), "finished_at": None, "is_proved": False})
        assert now() == {"I6": 3, "I8": 0, "I10": 1}
        write(database, "audits", audited(7, **DAY, **found(I6=2)))
        assert now() == {"I6": 2, "I8": 0, "I10": 0}
        killed = {**audited(6, **found(I8=5)), "finished_at": None}
        write(database, "audits", killed)
        assert now() == {"I6": 2, "I8": 5, "I10": 0}
        write(database, "audits", audited(5, **DAY))
        assert now() == {"I6": 0, "I8": 5, "I10": 0}
        write(database, "audits", audited(4))
        assert now() == {"I6": 0, "I8": 0, "I10": 0}


def test_what_audits_corrected_is_added_up_by_cause(database: str) -> None:
    with shown("billing", database) as gauges:
        assert gauges.value("weir_audit_corrected", cause="repriced") == 0
        assert gauges.value("weir_audit_corrected", cause="stream") is None
        rows = [audited(hours, corrected=Jsonb({"repriced": hours, "rejoined": 3})) for hours in (1, 4)]
        write(database, "audits", *rows, audited(2))
        assert gauges.value("weir_audit_corrected", cause="repriced") == 5
        assert gauges.value("weir_audit_corrected", cause="rejoined") == 6
        assert gauges.value("weir_audit_corrected", cause="duplicate") == 0


SEGMENT_BYTES = 16 << 20


def test_the_log_retained_by_a_slot_is_shown_until_the_slot_is_dropped(database: str) -> None:
    slot = f"weir_test_{uuid4().hex}"
    with psycopg.connect(database, autocommit=True) as connection, shown("ingestion", database) as gauges:
        before = gauges.value("weir_database_used_bytes") or 0
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        try:
            first = gauges.value("weir_slot_retained_bytes", slot=slot)
            connection.execute(
                "CREATE TABLE filler AS SELECT repeat(md5(n::text), 10) FROM generate_series(1, 9999) AS n"
            )
            held = gauges.value("weir_slot_retained_bytes", slot=slot)
            assert first is not None
            assert held is not None
            assert held - first > 3_000_000
            safe = gauges.value_now("weir_slot_safe_bytes", slot=slot)
            limit = connection.execute("SELECT pg_size_bytes(current_setting('max_slot_wal_keep_size'))").fetchone()
            assert safe is not None
            assert limit is not None
            assert safe + held == pytest.approx(limit[0], abs=2 * SEGMENT_BYTES), "Postgres counts whole segments"
            assert (gauges.value_now("weir_database_used_bytes") or 0) > before + 6_000_000, "the table and its log"
        finally:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        assert gauges.value("weir_slot_retained_bytes", slot=slot) is None
