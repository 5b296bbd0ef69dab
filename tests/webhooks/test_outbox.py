"""Each event is in the outbox once, in the transaction that made what it is about, and only if an endpoint gets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from deployment.errors import CannotRun
from tests.pages import blocks_of
from tests.webhooks.sending import ALL, STRAGGLER, add_endpoint, hold, queue, rows, states
from webhooks.endpoints import _LOCK, deliveries, disable, enable, resend, rotate
from webhooks.event_types import OF_NO_ACCOUNT, EventType
from webhooks.wording import sentence

AT = datetime(2026, 11, 1, tzinfo=UTC)
URL = "https://example.com/hook"
CORRECTION = """
INSERT INTO corrections (usage_lsn, meter, usage_lsns, window_start, account, model, currency, cause, old_quantity,
    new_quantity, old_amount, new_amount)
VALUES (%(lsn)s, 'requests', ARRAY[%(lsn)s], %(at)s, 'acme', 'm', 'EUR', 'rejoined', 3, 2, 0.000000000000000003,
    0.000000000000000002)
"""
INVOICE = """
INSERT INTO invoices (invoice, issuer, number, account, kind, period, period_start, period_end, timezone, currency,
    minor_unit, rounding, lines, total, residual, usage_position, frontier, audit_id)
VALUES ('weir-1', 'weir', 1, 'acme', 'invoice', '2026-10-01', '2026-10-01T00:00Z', '2026-11-01T00:00Z', 'UTC', 'EUR',
    2, 'half-even', 1, 12.30, 0, 1, '2026-11-02T00:00Z', 1)
"""
STATE = """
INSERT INTO invoice_events (account, sequence, invoice, state, at, made_by, document, previous, hash)
VALUES ('acme', %(sequence)s, 'weir-1', %(state)s, %(at)s, 'ada', '{}', '', %(state)s || '-hash')
"""
THRESHOLD = """
INSERT INTO threshold_changes (account, period, first_day, meter, currency, threshold, version, is_crossed, used)
VALUES ('acme', 'P1M', '2026-11-01', '', 'EUR', 400.10, %(version)s, %(version)s = 1, 0.000000000000000003)
"""
PATTERN = """
INSERT INTO analytics_patterns (pattern, version, definition, first_position) VALUES ('retry_storm', 'v', '{}', 1)
"""
MATCH = """
INSERT INTO pattern_matches (pattern_id, match_id, version, is_retracted, account, keys, first_lsn, last_lsn,
    started_at, ended_at, outcomes, measures, frontier)
VALUES (1, %(match)s, %(version)s, %(version)s = 2, 'acme', '{"account": "acme", "api_key_id": "k-1"}', 7, 16, %(at)s,
    %(at)s, 10, '{"failures": 10}', %(at)s + %(age)s * interval '1 day')
"""

WATCH = "INSERT INTO watches (name, condition, columns, added_by) VALUES ('w', 'cached', '{}', 'ada')"
CALL = """
INSERT INTO watch_calls (watch_id, hour, step, name, hits, first)
SELECT watch_id, %(at)s, 100, name, 250, '[{"request_id": "r-1"}]' FROM watches
"""
SILENT = "INSERT INTO silent_sources VALUES ('gateway', 'acme', %(at)s)"
HEARD = (
    "INSERT INTO sources (source, first_seen_at, last_seen_at) VALUES ('gateway', %(at)s, %(at)s::timestamptz + '1 h')"
)
SPIKE = "INSERT INTO dead_letter_spikes (reason, records) VALUES ('invalid_json', 250)"


def outbox(database: str) -> list[tuple[str, str, dict[str, Any]]]:
    found = rows(database, "SELECT type, account, body FROM webhook_events ORDER BY number")
    return [(kind, account, json.loads(body)["data"]) for kind, account, body in found]


def insert(database: str, statement: str, **values: Any) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(statement, {"at": AT, **values})


def test_each_source_writes_an_event_with_all_digits_of_its_row(database: str) -> None:
    add_endpoint(database, URL)
    insert(database, STRAGGLER, lsn=1, account="acme")
    insert(database, CORRECTION, lsn=2)
    insert(database, INVOICE)
    for sequence, state in enumerate(("Open", "Issued", "Voided"), start=1):
        insert(database, STATE, sequence=sequence, state=state)
    for version in (1, 2):
        insert(database, THRESHOLD, version=version)
    insert(database, PATTERN)
    for version in (1, 2):
        insert(database, MATCH, match="match_1", version=version, age=6)
    insert(database, WATCH)
    insert(database, CALL)
    for statement in (HEARD, SILENT, "DELETE FROM silent_sources", SPIKE, "DELETE FROM dead_letter_spikes"):
        insert(database, statement)
    (held, correction, issued, voided, crossed, retracted, matched, unmatched, hit, *conditions) = outbox(database)
    assert held[:2] == ("weir.straggler.held", "acme")
    assert (held[2]["straggler"], held[2]["quantity"]) == ("1/requests", "2")
    assert correction[:2] == ("weir.correction.created", "acme")
    assert (correction[2]["old_amount"], correction[2]["new_amount"]) == (
        "0.000000000000000003",
        "0.000000000000000002",
    )
    assert issued[:2] == ("weir.invoice.issued", "acme")
    assert (issued[2]["total"], issued[2]["period"], issued[2]["hash"]) == ("12.30", "2026-10", "Issued-hash")
    assert voided[0] == "weir.invoice.voided"
    assert (crossed[2]["threshold"], crossed[2]["value"]) == ("400.1", "0.000000000000000003")
    assert matched[:2] == ("weir.pattern.matched", "acme")
    assert (matched[2]["keys"], matched[2]["version"]) == ({"account": "acme", "api_key_id": "k-1"}, 1)
    assert unmatched[0] == "weir.pattern.retracted"
    assert (unmatched[2]["match"], unmatched[2]["version"]) == (matched[2]["match"], 2)
    for event in (issued, crossed, matched, *conditions[::2]):
        (shown,) = (json.loads(block.text) for block in blocks_of("json") if event[0] in block.text)
        assert shown["data"].keys() == event[2].keys(), "the guide's example"
    assert hit[:2] == ("weir.watch.hit", "")
    assert (hit[2]["hour"], hit[2]["reached"], hit[2]["hits"]) == ("2026-11-01T00:00:00+00:00", 100, 250)
    assert [kind for kind, _, _ in conditions] == list(EventType)[-4:]
    assert {account for _, account, _ in conditions} == {""}, "they are of whoever operates"
    assert {kind for kind, account, _ in outbox(database) if not account} == OF_NO_ACCOUNT
    silent, heard, spike, spike_ended = (data for _, _, data in conditions)
    assert (silent["source"], silent["account"], heard["silent_since"]) == ("gateway", "acme", silent["last_seen_at"])
    assert heard["last_seen_at"] == "2026-11-01T01:00:00+00:00"
    assert (spike["records"], spike["within"]) == (250, "PT10M")
    assert spike_ended == {"reason": "invalid_json", "began_at": spike["began_at"]}
    found = {held[0], correction[0], issued[0], voided[0], crossed[0], retracted[0], matched[0], unmatched[0], hit[0]}
    found |= {kind for kind, _, _ in conditions}
    assert found == set(EventType)
    sentences = {kind: sentence(kind, data) for kind, _, data in outbox(database)}
    assert not [text for text in sentences.values() if "?" in text], "a value that the event does not have"
    assert "(account acme, api_key_id k-1)" in sentences["weir.pattern.matched"]


def test_a_match_calls_once_also_when_it_is_made_again_and_not_when_it_is_older_than_a_week(database: str) -> None:
    add_endpoint(database, URL)
    insert(database, PATTERN)
    insert(database, MATCH, match="match_1", version=1, age=1)
    insert(database, "DELETE FROM pattern_matches")
    insert(database, MATCH, match="match_1", version=1, age=2)
    insert(database, MATCH, match="match_2", version=1, age=7)
    assert [data["match"] for _, _, data in outbox(database)] == ["match_1"]


def test_an_endpoint_that_names_a_type_or_an_account_twice_gets_an_event_once(database: str) -> None:
    add_endpoint(database, URL, [EventType.STRAGGLER_HELD, EventType.STRAGGLER_HELD])
    add_endpoint(database, URL, accounts=["acme", "acme"])
    hold(database, ["acme", "acme"])
    queue(database)
    assert states(database) == {"waiting": 4}


def test_a_body_has_the_form_of_the_specification_and_its_instants_are_in_utc(database: str) -> None:
    add_endpoint(database, URL)
    with psycopg.connect(database) as connection:
        connection.execute("SET timezone = 'Asia/Kolkata'")
        connection.execute(STRAGGLER, {"lsn": 1, "account": "acme", "at": AT})
    ((text,),) = rows(database, "SELECT body FROM webhook_events")
    body = json.loads(text)
    assert set(body) == {"type", "timestamp", "data"}
    assert body["type"] == "weir.straggler.held"
    assert datetime.fromisoformat(body["timestamp"]).utcoffset() == AT.utcoffset()
    assert body["data"]["window_start"] == "2026-11-01T00:00:00+00:00"
    assert len(text.encode()) < 20_000


def test_what_is_rolled_back_calls_nobody(database: str) -> None:
    add_endpoint(database, URL)
    with psycopg.connect(database) as connection:
        connection.execute(STRAGGLER, {"lsn": 1, "account": "acme", "at": AT})
        connection.rollback()
    assert outbox(database) == []


def test_of_a_session_that_is_killed_there_are_both_the_row_and_its_event_or_neither(database: str) -> None:
    add_endpoint(database, URL)
    killer = psycopg.connect(database, autocommit=True)
    for lsn in range(1, 11):
        victim = psycopg.connect(database)
        victim.execute(STRAGGLER, {"lsn": lsn, "account": "acme", "at": AT})
        if lsn % 2:
            victim.commit()
        killer.execute("SELECT pg_terminate_backend(%s, 5000)", [victim.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            victim.execute("SELECT 1")
        victim.close()
    killer.close()
    committed = {f"{lsn}/requests" for lsn in range(1, 11, 2)}
    assert {str(lsn) + "/requests" for (lsn,) in rows(database, "SELECT usage_lsn FROM stragglers")} == committed
    assert sorted(data["straggler"] for _, _, data in outbox(database)) == sorted(committed)


def test_a_row_that_is_made_again_has_no_second_event(database: str) -> None:
    add_endpoint(database, URL)
    for _ in range(2):
        hold(database, ["acme"])
        insert(database, CORRECTION, lsn=2)
        before = rows(database, "SELECT event_id FROM webhook_events ORDER BY number")
        insert(database, "DELETE FROM stragglers")
        insert(database, "DELETE FROM corrections")
    assert len(before) == 2
    assert rows(database, "SELECT event_id FROM webhook_events ORDER BY number") == before


def test_an_endpoint_gets_the_types_and_accounts_that_it_names_and_nothing_before_it_was_added(database: str) -> None:
    hold(database, ["acme"])
    named = add_endpoint(database, URL, [EventType.STRAGGLER_HELD], accounts=["acme"]).endpoint
    every = add_endpoint(database, URL).endpoint
    other = add_endpoint(database, URL, [EventType.INVOICE_ISSUED]).endpoint
    disabled = add_endpoint(database, URL).endpoint
    disable(database, disabled, "ada", "on holiday")
    hold(database, ["acme", "globex"], first_lsn=2)
    queue(database)
    queued = rows(database, "SELECT endpoint, account FROM webhook_deliveries ORDER BY number")
    assert sorted(queued) == sorted([(named, "acme"), (every, "acme"), (every, "globex")])
    assert other not in {endpoint for endpoint, _ in queued}


@pytest.mark.parametrize("given", [None, {"events": [EventType.INVOICE_ISSUED]}, {"accounts": ["globex"]}])
def test_without_an_endpoint_that_gets_it_no_row_is_written(database: str, given: dict[str, Any] | None) -> None:
    if given is not None:
        add_endpoint(database, URL, given.get("events", ALL), accounts=given.get("accounts", ()))
    hold(database, ["acme"])
    insert(database, CORRECTION, lsn=2)
    assert outbox(database) == []


def test_a_straggler_that_is_not_held_calls_nobody(database: str) -> None:
    add_endpoint(database, URL)
    insert(database, STRAGGLER.replace("'hold'", "'drop'").replace(", 0)", ", NULL)"), lsn=1, account="acme")
    assert outbox(database) == []


def test_an_endpoint_that_is_not_there_is_named(database: str) -> None:
    with pytest.raises(CannotRun, match="no endpoint we_none: `weir webhooks list`"):
        disable(database, "we_none", "ada", "x")


def test_billing_and_whoever_changes_an_endpoint_do_not_wait_for_each_other(database: str) -> None:
    endpoint = add_endpoint(database, URL).endpoint
    impatient = make_conninfo(database, options="-c lock_timeout=5s")
    with psycopg.connect(database) as billing:
        billing.execute(STRAGGLER, {"lsn": 1, "account": "acme", "at": AT})
        assert list(deliveries(impatient, endpoint, None)) == []
        rotate(impatient, endpoint, "ada", timedelta(hours=1))
        disable(impatient, endpoint, "ada", "moves")
        assert enable(impatient, endpoint, "ada") == 0
        assert resend(impatient, endpoint, [], dead=True) == 0
    with psycopg.connect(database) as changing, psycopg.connect(impatient) as billing:
        changing.execute(_LOCK, [endpoint])
        billing.execute(STRAGGLER, {"lsn": 2, "account": "acme", "at": AT})
        queue(impatient)
        assert len(list(deliveries(impatient, endpoint, None))) == 1
    assert len(outbox(database)) == 2


WAITS_FOR = "SELECT count(*) FROM pg_locks WHERE NOT granted AND %s = ANY (pg_blocking_pids(pid))"


@pytest.mark.parametrize("sends_again", [lambda at, of: resend(at, of, [1]), lambda at, of: enable(at, of, "ada")])
def test_whoever_sends_again_while_an_attempt_is_stored_waits_for_it_and_not_in_a_circle(
    database: str, sends_again: Callable[[str, str], int]
) -> None:
    endpoint = add_endpoint(database, URL).endpoint
    hold(database, ["acme"])
    queue(database)
    with ThreadPoolExecutor() as threads:
        with psycopg.connect(database) as sender:
            # As an attempt is stored of a receiver that asked for time.
            sender.execute("UPDATE webhook_deliveries SET attempts = 1")
            count = threads.submit(sends_again, database, endpoint)
            while rows(database, WAITS_FOR, sender.info.backend_pid) == [(0,)]:
                assert not count.done()
            sender.execute("UPDATE webhook_endpoints SET paused_until = now()")
        assert count.result() == 1
    assert rows(database, "SELECT attempts, state FROM webhook_deliveries") == [(0, "waiting")]


def test_a_match_that_called_is_retracted_by_a_call_however_old_it_is_and_one_that_did_not_is_not(
    database: str,
) -> None:
    add_endpoint(database, URL)
    insert(database, PATTERN)
    insert(database, MATCH, match="match_1", version=1, age=6)
    insert(database, MATCH, match="match_1", version=2, age=30)
    insert(database, MATCH, match="match_2", version=1, age=7)
    insert(database, MATCH, match="match_2", version=2, age=30)
    found = [(kind, data["match"], data["version"]) for kind, _, data in outbox(database)]
    assert found == [("weir.pattern.matched", "match_1", 1), ("weir.pattern.retracted", "match_1", 2)]
