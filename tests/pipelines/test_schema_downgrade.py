"""The way back to an earlier version: its schema, to the column, unless it would read wrongly what is stored."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from alembic import command
from psycopg.types.json import Jsonb

from jobs.billing.config import BillingConfig
from jobs.joins.config import JoinsConfig
from jobs.runtime.errors import Refused
from jobs.runtime.postgres import migrations
from jobs.runtime.postgres.downgrade import LOSSES, OLDEST, USES, downgrade
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.schema import migrate, migrator, schema_is_current
from laptop.database import program
from metering.plan_terms import PLAN_MODEL
from metering.views import Aggregate, Measure, View
from tests.conftest import _named
from tests.database_rows import write
from webhooks.endpoints import add
from webhooks.event_types import EventType
from webhooks.kinds import Kind

FILES = sorted((Path(migrations.__path__[0]) / "versions").glob("*.py"))
REACHED = [file.name[:4] for file in FILES if file.name[:4] >= OLDEST]
NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
STAYS = re.compile(r"(corrections|stragglers)_cause_check|price_jumps_compared_with_check|^ALTER TABLE [a-z_.]+$")
"""Which values may stand in a row: it costs nothing that more may, and that nobody has looked at each."""


@contextmanager
def empty_database(postgres_url: str) -> Iterator[str]:
    name = f"test_{uuid4().hex}"
    with psycopg.connect(_named(postgres_url, "postgres"), autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        yield _named(postgres_url, name)
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def lines_of(url: str) -> list[str]:
    """What there is, a line each; columns may stand in another order."""
    dump = [str(program("pg_dump")), "--schema-only", "--no-owner", "--no-privileges", "--restrict-key=same", url]
    dumped = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    lines = (line.strip().rstrip(",") for line in dumped.splitlines())
    return sorted(line for line in lines if line and not line.startswith("--") and not STAYS.search(line))


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("revision", REACHED[:-1])
def test_the_schema_is_as_the_earlier_version_makes_it(postgres_url: str, database: str, revision: str) -> None:
    with empty_database(postgres_url) as earlier:
        with migrator(earlier) as config:
            command.upgrade(config, revision)
        wanted = lines_of(earlier)
    as_it_was = lines_of(database)
    downgrade(database, revision)
    assert lines_of(database) == wanted
    migrate(database)
    assert schema_is_current(database)
    assert lines_of(database) == as_it_was


PRICE = {"plan": "p", "meter": "requests", "currency": "EUR", "unit_price": 1, "effective_from": NOW}
STRAGGLER = {
    "usage_lsn": 1,
    "meter": "requests",
    "decision": "drop",
    "account": "a",
    "request_id": "r",
    "quantity": 2,
    "event_time": NOW,
    "window_start": NOW,
    "received_at": NOW,
    "late_seconds": 1,
}
WINDOW = {
    "window_start": NOW,
    "window_end": NOW,
    "account": "a",
    "model": "m",
    "meter": "requests",
    "quantity": 1,
    "unit_price": 0,
}


LATE_MEMBER = {
    "usage_lsn": 1,
    "meter": "m",
    "is_correction": True,
    "cause": "stream",
    "account": "a",
    "first_day": NOW.date(),
    "aggregation": "max",
    "period": "day",
    "window_start": NOW,
    "ends_at": NOW,
    "member": "7",
    "member_rows": 1,
}


def configured(database: str, job: str, config: dict[str, Any]) -> None:
    row = {"job": job, "epoch": 1, "owner_pid": 1, "owner_started_at": NOW, "started_at": NOW, "state": "stopped"}
    write(database, "jobs", {**row, "config": Jsonb(config)})


def ruled(database: str, config: BillingConfig) -> None:
    write(database, "rules", {"job": "billing", "first_position": 1, "rules": Jsonb(config.deciding)})


def priced(database: str, model: str) -> None:
    configured(database, "joins", {"price_attributes": ["operation"]})
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    write(database, "catalog.prices", {**PRICE, "model": model})


HOLDS: dict[str, Any] = {"late_policy": {"requests": "hold"}}
SUMMED: dict[str, Any] = {"of": ["input_tokens", "cached_tokens"], "bands": {"low": "1", "high": None}}


INVOICE = {
    "invoice": "weir-1",
    "issuer": "weir",
    "number": 1,
    "account": "acme",
    "kind": "invoice",
    "timezone": "UTC",
    "period": "2026-10-01",
    "period_start": "2026-10-01T00:00Z",
    "period_end": "2026-11-01T00:00Z",
    "currency": "EUR",
    "minor_unit": 2,
    "rounding": "half-even",
    "lines": 1,
    "total": 0,
    "residual": 0,
    "usage_position": 1,
    "frontier": "2026-11-02T00:00Z",
    "audit_id": 1,
}


def tiered(database: str) -> None:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    terms = Jsonb({"kind": "volume", "tiers": [{"unit_price": "1"}]})
    write(database, "catalog.prices", {**PRICE, "model": "m", "unit_price": None, "terms": terms})


def with_pool(database: str) -> None:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    write(database, "catalog.accounts", {"account": "a", "name": "A", "plan": "p", "currency": "EUR"})
    write(database, "catalog.pools", {"account": "a", "parent": "a", "first_month": "2026-10-01"})


def with_plan_terms(database: str) -> None:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    terms = {"terms": Jsonb({"kind": "plan", "flat_fee": "1"}), "unit_price": None}
    write(database, "catalog.prices", {**PRICE, "model": PLAN_MODEL, "meter": "requests", **terms})


ERASURE = {"erasure": 1, "account": "acme", "person": b"x" * 32, "key_id": "k", "reason": "r", "asked_by": "dpo"}


def with_waiting_delivery(database: str) -> None:
    add(database, "https://example.com/", [EventType.STRAGGLER_HELD], "ada")
    write(database, "stragglers", {**STRAGGLER, "decision": "hold", "settled": 0, "hold_expires": "drop"})


def with_endpoint_of_mail(database: str) -> None:
    add(database, "ops@example.com", [EventType.STRAGGLER_HELD], "ada", kind=Kind.MAIL)


def with_endpoint_of_slack(database: str) -> None:
    add(database, "https://example.com/", [EventType.STRAGGLER_HELD], "ada", kind=Kind.SLACK)


def with_gaps(database: str) -> None:
    view = View("v", (), (Measure("m", Aggregate.GAPS),))
    of = {"view": view.name, "version": view.version, "definition": Jsonb(view.definition), "first_position": 1}
    write(database, "analytics_views", of)


PLANTED: dict[str, Callable[[str], None]] = {
    "usage was billed once by the more specific meter": lambda at: write(
        at, "usage_windows", {**WINDOW, "price_version": 0}
    ),
    "ingestion runs with shipped_conventions": lambda at: configured(at, "ingestion", {"shipped_conventions": True}),
    "joins runs with best_report_bills": lambda at: configured(at, "joins", {"best_report_bills": True}),
    "an audit has restated usage": lambda at: write(at, "stragglers", {**STRAGGLER, "cause": "restated"}),
    "catalog.prices has conditions": lambda at: priced(at, 'm{"operation":"batch"}'),
    "prefixes of models": lambda at: priced(at, "m-*"),
    "prices of several models": lambda at: priced(at, '["m","n"]'),
    "usage that came on time was replaced": lambda at: write(
        at, "taken_back_on_time", {"usage_lsn": 1, "meter": "requests"}
    ),
    "ingestion knows reversals": lambda at: configured(at, "ingestion", {"reversal": {"sources": []}}),
    "an audit has taken usage back": lambda at: write(at, "stragglers", {**STRAGGLER, "cause": "reversed"}),
    "an audit has counted a content once": lambda at: write(at, "stragglers", {**STRAGGLER, "cause": "once_per"}),
    "ingestion reads several calls from one event": lambda at: configured(
        at, "ingestion", {"contracts": [{"$id": "trace", "x-weir-unnest": "/data/calls"}]}
    ),
    "ingestion reads several topics": lambda at: configured(
        at, "ingestion", {"events": [{"topic": "a", "types": []}, {"topic": "b", "types": []}]}
    ),
    "a meter bills whole periods": lambda at: write(
        at,
        "meters",
        {"meter": "m", "unit": "u", "sums": "c", "aggregation": "max", "period": "day", "is_declared": False},
    ),
    "a meter bills the least number of a period": lambda at: write(
        at,
        "meters",
        {"meter": "m", "unit": "u", "sums": "c", "aggregation": "min", "period": "day", "is_declared": False},
    ),
    "an audit has billed events whose contract came late": lambda at: write(
        at, "stragglers", {**STRAGGLER, "cause": "schema_added"}
    ),
    "prices with tiers or packages": tiered,
    "catalog.prices has, or had, terms of plans": with_plan_terms,
    "corrections of whole periods wait": lambda at: write(at, "late_members", LATE_MEMBER),
    "invoices were issued": lambda at: write(at, "invoices", INVOICE),
    "people were forgotten": lambda at: write(at, "erasures", ERASURE),
    "events wait to be delivered": with_waiting_delivery,
    "there are endpoints of mail": with_endpoint_of_mail,
    "there are endpoints of Slack": with_endpoint_of_slack,
    "limits of money, of each account, or with steps": lambda at: write(
        at, "catalog.limits", {"currency": "EUR", "plan": "p", "period": "P1M", "effective_from": NOW, "amount": 1}
    ),
    "accounts that share a month's total": with_pool,
    "limits of what a meter costs": lambda at: write(
        at,
        "catalog.limits",
        {"meter": "requests", "currency": "EUR", "plan": "p", "period": "P1M", "effective_from": NOW, "amount": 1},
    ),
    "decided about stragglers by hold.above_amount_by_currency": lambda at: ruled(
        at, BillingConfig.model_validate({**HOLDS, "hold": {"above_amount_by_currency": {"EUR": "5"}}})
    ),
    "bands of prices whose columns count each unit once": lambda at: configured(
        at,
        "joins",
        JoinsConfig.model_validate({"price_attributes": ["region", {"context": SUMMED}]})
        .settled((), is_new=True)
        .model_dump(mode="json"),
    ),
    "a view measures the time between outcomes": lambda at: write(
        at, "analytics_views", {**VIEW, "definition": Jsonb(View("v", (), (Measure("m", Aggregate.GAPS),)).definition)}
    ),
    "limits of a rolling period": lambda at: write(
        at,
        "catalog.limits",
        {"meter": "requests", "plan": "p", "period": "PT24H", "effective_from": NOW, "quantity": 1},
    ),
    "binds logins to accounts": lambda at: write(
        at, "reader_logins", {"login": "weir_dashboard", "accounts": '["acme"]'}
    ),
    "limits of a dimension": lambda at: write(
        at,
        "catalog.limits",
        {
            "meter": "requests",
            "plan": "p",
            "dimension": "team",
            "dimension_value": "search",
            "period": "P1M",
            "effective_from": NOW,
            "quantity": 1,
        },
    ),
    "limits of a model, or that recur": lambda at: write(
        at, "catalog.limits", {"meter": "requests", "plan": "p", "period": "P1M", "effective_from": NOW, "every": 1}
    ),
}


def test_each_use_that_blocks_a_downgrade_is_planted_below() -> None:
    assert all(any(sentence in use.sentence for sentence in PLANTED) for use in USES)


@pytest.mark.parametrize("sentence", PLANTED)
def test_rows_that_an_earlier_version_would_misread_block_a_downgrade(database: str, sentence: str) -> None:
    PLANTED[sentence](database)
    with pytest.raises(Refused, match=re.escape(sentence)):
        downgrade(database, OLDEST)
    assert schema_is_current(database)


def test_a_downgrade_makes_the_deliveries_that_the_sender_has_not_made(database: str) -> None:
    with_waiting_delivery(database)
    assert downgrade(database, "0084") == []
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT state, account FROM webhook_deliveries").fetchall()
        assert found == [("waiting", "a")]
        # And the triggers of that version make one in the transaction that writes an event.
        write(
            database,
            "stragglers",
            {**STRAGGLER, "usage_lsn": 2, "decision": "hold", "settled": 0, "hold_expires": "drop"},
        )
        assert connection.execute("SELECT count(*) FROM webhook_deliveries").fetchone() == (2,)
    migrate(database)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT queued_to FROM webhook_position").fetchone() == (2,)


def test_a_downgrade_names_what_is_lost_with_the_endpoints(database: str) -> None:
    assert downgrade(database, "0079") == []
    migrate(database)
    add(database, "https://example.com/", [EventType.STRAGGLER_HELD], "ada")
    (lost,) = downgrade(database, "0079")
    assert lost.startswith("1 endpoints of webhooks with their secrets, 0 dead deliveries")


VIEW: dict[str, object] = {"view": "v", "version": "1", "definition": Jsonb({}), "first_position": 1}
KEY = {"key_id": "k", "secret_sha256": b"0" * 32, "scopes": ["post"], "created_by": "ada"}
JUMP = {
    "plan": "p",
    "model": "m",
    "meter": "requests",
    "currency": "EUR",
    "effective_from": NOW,
    "unit_price": 1,
    "compared_with": "before",
    "other_price": 200,
    "changed_by": "ada",
    "changed_at": NOW,
}
LIMIT = {"account": "a", "meter": "requests", "period": "P1M", "effective_from": NOW, "quantity": 1}
ACCEPTED = {
    "topic_id": "t",
    "topic": "events",
    "partition": 0,
    "first_offset": 0,
    "end_offset": 9,
    "reason": "r",
    "accepted_by": "ada",
}
REMOVAL = {
    "endpoint": "e",
    "state": "dead",
    "cause": "age",
    "deliveries": 3,
    "first_number": 1,
    "last_number": 3,
    "first_made_at": NOW,
    "last_made_at": NOW,
}
CONSUMER = {"consumer": "erp", "of_accounts": "*", "number": 4, "key_id": "k"}
THRESHOLD = {
    "account": "a",
    "period": "P1M",
    "first_day": "2026-11-01",
    "meter": "requests",
    "currency": "",
    "threshold": 1,
    "version": 1,
    "is_crossed": True,
}
LATE_VIEW = "what 1 views have measured, as they were declared late or more than once"
WATCH = {"name": "errors", "condition": "cached", "columns": Jsonb({}), "added_by": "ada"}
INVALIDATION = {"account": "acme", "key_id": "k"}
TOPIC_REMOVAL = {"topic": "gateway", "reason": "moved", "removed_by": "ada", "waiting": 0}
LOST: list[tuple[str, str, dict[str, Any], str]] = [
    ("0038", "catalog.price_jumps", JUMP, "who confirmed or is to confirm 1 prices"),
    ("0049", "api_keys", KEY, "1 keys of the API"),
    ("0052", "api_keys", {**KEY, "requests_per_second": 1}, "the rate limits of 1 keys of the API"),
    ("0145", "catalog.limits", {**LIMIT, "code": "guard"}, "the codes of 1 limits"),
    ("0059", "catalog.limits", LIMIT, "1 limits of the catalog"),
    ("0067", "analytics_views", VIEW, "what 1 views have measured: "),
    ("0072", "api_keys", KEY, "1 entries of the activity log"),
    ("0075", "invoices", {**INVOICE, "activity_number": 1}, "by which catalog 1 invoices were made"),
    ("0080", "analytics_views", {**VIEW, "first_position": 7}, LATE_VIEW),
    ("0082", "accepted_losses", ACCEPTED, "1 acceptances of lost records (the journal keeps which records"),
    ("0088", "webhook_removals", REMOVAL, "the sums of 3 deliveries of webhooks that were removed"),
    ("0093", "correction_consumers", CONSUMER, "up to where 1 consumers have applied corrections"),
    ("0095", "threshold_changes", THRESHOLD, "1 changes of thresholds: "),
    ("0099", "watches", WATCH, "1 watches, and their hits"),
    (
        "0103",
        "topic_removals",
        TOPIC_REMOVAL,
        "who removed topics of events, and why, 1 times (the journal keeps which",
    ),
    ("0107", "threshold_changes", {**THRESHOLD, "model": "m"}, "1 changes of thresholds of a model: "),
    ("0121", "ordered_events", {"topic": "events.ordered", "next_position": 7}, "up to where accepted events were"),
    (
        "0125",
        "threshold_changes",
        {**THRESHOLD, "period": "PT24H", "first_day": "1970-01-01"},
        "1 changes of thresholds of a rolling period: ",
    ),
    (
        "0132",
        "threshold_changes",
        {**THRESHOLD, "dimension": "team", "dimension_value": "search"},
        "1 changes of thresholds of a dimension: ",
    ),
    ("0112", "portal_invalidations", INVALIDATION, "which portal tokens were invalidated: those of 1 accounts"),
    (
        "0115",
        "correction_consumers",
        {**CONSUMER, "of_accounts": json.dumps([f"{n:064x}" for n in range(300)])},
        "up to where 1 consumers with keys of many accounts",
    ),
]


@pytest.mark.parametrize(("revision", "table", "row", "sentence"), LOST)
def test_a_downgrade_names_what_is_lost(
    database: str, revision: str, table: str, row: dict[str, Any], sentence: str
) -> None:
    write(database, table, row)
    assert len([lost for lost in downgrade(database, revision) if lost.startswith(sentence)]) == 1


def test_each_loss_is_planted_above() -> None:
    # Those of endpoints and of matches have tests of their own.
    assert {loss.revision for loss in LOSSES} - {"0080", "0103", "0106"} == {
        next(reached for reached in REACHED if reached > revision) for revision, *_ in LOST
    }


NOT_MISSED = {
    "activity_head": "of the activity log",
    "analytics_panes": "of the views",
    "capture_heartbeats": "written anew by each driver",
    "dead_letter_minutes": "of the last ten minutes",
    "dead_letter_spikes": "found again by the next dead letters",
    "declared_dimensions": "written anew when ingestion starts",
    "declared_windows": "a view of jobs.config",
    "effective_prices": "written anew from catalog.prices",
    "effective_prices_due": "the upgrade has everybody folded",
    "effective_prices_now": "rows of effective_prices",
    "effective_prices_progress": "written anew by the first fold",
    "invoice_events": "of invoices",
    "limited_dimensions": "of limits of a dimension, which block it",
    "invoice_lines": "of invoices",
    "silent_sources": "found again from the sources",
    "pattern_outcomes": "read again from the outcomes that come",
    "thresholds_due": "the upgrade lists every limit again",
    "usage_dimensions": "of limits of a dimension, which block it",
    "usage_hours": "sums of usage_windows, made again by the upgrade",
    "usage_members": "of meters that bill whole periods",
    "usage_months": "sums of usage_windows, made again by the upgrade",
    "watch_calls": "of the watches",
    "watch_status": "a view of jobs",
    "watch_hits": "of the watches",
    "watch_hours": "of the watches",
    "watch_progress": "of the watches",
    "webhook_attempts": "of endpoints",
    "webhook_secrets": "of endpoints",
}


def test_each_table_that_a_downgrade_drops_blocks_it_or_is_named_or_is_not_missed(database: str) -> None:
    def tables() -> set[str]:
        with psycopg.connect(database) as connection:
            found = "SELECT table_name FROM information_schema.tables WHERE table_schema IN ('weir', 'catalog')"
            return {name for (name,) in connection.execute(found)}

    before = tables()
    assert downgrade(database, OLDEST) == []
    dropped = before - tables()
    read = " ".join([use.found for use in USES] + [loss.found for loss in LOSSES])
    named = {table for table in dropped if re.search(rf"\b{table}\b", read)}
    assert dropped - named == NOT_MISSED.keys()


@pytest.mark.parametrize(
    ("versions", "left"),
    [([1, 2, 2**32 + 1], [1, 2, 3]), ([1, 2**32 + 1], [1, 3]), ([2**32 + 1, 2**32 + 2], [2]), ([1, 2**32 + 2], [1, 2])],
)
def test_a_downgrade_gives_no_version_of_a_threshold_that_a_webhook_has_had(
    database: str, versions: list[int], left: list[int]
) -> None:
    for version in versions:
        write(database, "threshold_changes", {**THRESHOLD, "version": version, "is_crossed": version % 2 == 1})
    downgrade(database, "0098")
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT version, is_crossed FROM threshold_changes ORDER BY version").fetchall()
    assert found == [(version, version % 2 == 1) for version in left]


def matched(database: str, version: int) -> None:
    of_pattern = {"pattern": "p", "version": "v", "definition": Jsonb({}), "first_position": 1}
    write(database, "analytics_patterns", of_pattern)
    of = {"pattern_id": 1, "match_id": "m", "version": version, "is_retracted": False, "keys": Jsonb({})}
    at = {"started_at": "2026-11-01T00:00Z", "ended_at": "2026-11-01T00:00Z", "first_lsn": 1, "last_lsn": 2}
    write(database, "pattern_matches", {**of, **at, "outcomes": 2, "measures": Jsonb({})})


def test_a_downgrade_names_the_changes_of_matches_that_are_lost(database: str) -> None:
    matched(database, 1)
    lost = downgrade(database, "0098")
    assert len([sentence for sentence in lost if sentence.startswith("1 changes of matches of patterns: ")]) == 1


@pytest.mark.parametrize(("version", "named"), [(1, False), (2_000_001, True)])
def test_a_downgrade_names_patterns_that_begin_again_and_versions_that_receivers_know_higher(
    database: str, version: int, named: bool
) -> None:
    matched(database, version)
    lost = downgrade(database, "0105")
    assert lost[0].startswith("the outcomes of 1 patterns: matches that are not final yet are not found")
    assert [sentence.startswith("the versions of 1 changes of matches: ") for sentence in lost[1:]] == [True] * named
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT version FROM pattern_matches").fetchall() == [(1,)]


@pytest.mark.parametrize("cause", ["restated", "reversed", "once_per", "schema_added"])
def test_usage_that_an_audit_appended_blocks_a_downgrade_also_where_it_changed_no_closed_window(
    database: str, cause: str
) -> None:
    """Billing of the earlier version refuses these rows, in a rebuild or where it has not read them yet."""
    write(database, "audits", {"version": "1", "corrected": Jsonb({cause: 1})})
    with pytest.raises(Refused, match="an audit has"):
        downgrade(database, OLDEST)
    assert schema_is_current(database)


def test_what_an_earlier_version_reads_as_well_does_not(database: str) -> None:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    write(database, "catalog.prices", {**PRICE, "model": "m"})
    write(database, "usage_windows", {**WINDOW, "price_version": 7})
    write(database, "stragglers", {**STRAGGLER, "cause": "stream"})
    as_before = {"context": {**SUMMED, "each_unit_once": False}}
    of_one = {"length": {**SUMMED, "of": ["input_tokens"], "each_unit_once": True}}
    configured(database, "joins", {"best_report_bills": False, "price_attributes": ["region", as_before, of_one]})
    ruled(database, BillingConfig.model_validate({**HOLDS, "hold": {"above_amount": "5"}}))
    configured(database, "ingestion", {"shipped_conventions": False, "reversal": {"sources": None}})
    downgrade(database, OLDEST)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT sum(quantity) FROM stragglers").fetchone() == (2,)
        assert connection.execute("SELECT sum(unit_price) FROM catalog.prices").fetchone() == (1,)


def test_batches_block_a_downgrade_until_no_late_copy_of_their_events_can_come(database: str) -> None:
    now = datetime.now(UTC)
    with pytest.raises(Refused, match="records with several events came"):
        downgrade(database, "0062", now - timedelta(days=34))
    configured(database, "ingestion", {"dedupe_horizon_seconds": 60 * 86_400})
    with pytest.raises(Refused, match="records with several events came"):
        downgrade(database, "0062", now - timedelta(days=59))
    assert schema_is_current(database)
    downgrade(database, "0064", now)  # it knows batches
    migrate(database)
    downgrade(database, "0062", now - timedelta(days=61))


def test_while_an_application_runs_the_schema_stays(database: str) -> None:
    ownership = Ownership.take("billing", database, {})
    try:
        with pytest.raises(Refused, match=re.escape("stop the applications first (billing runs)")):
            downgrade(database, OLDEST)
    finally:
        ownership.connection.close()
    downgrade(database, OLDEST)


@pytest.mark.parametrize("revision", ["0036", "9999", "head", "-1", ""])
def test_an_unsupported_schema_version_is_refused(database: str, revision: str) -> None:
    with pytest.raises(Refused, match=f"{OLDEST} to {REACHED[-1]}"):
        downgrade(database, revision)
    assert schema_is_current(database)
