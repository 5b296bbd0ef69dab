"""What people do is in the activity log, whoever does it and by whatever way; nobody can change it unnoticed."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from api.key_store import create, revoke, rotate
from catalog.decisions import DecisionText, Waiting, decide
from catalog.file import parse_catalog
from catalog.store import store
from cli.main import app
from deployment.activity import record_command
from metering.activity_chain import Chain, Entry
from metering.api_keys import Scope
from metering.vocabulary import Decision
from webhooks.changing import Change, change
from webhooks.endpoints import add, disable, enable
from webhooks.event_types import EventType

PRICE = {"plan": "p", "model": "m", "meter": "requests", "currency": "EUR", "effective_from": "2026-01-01T00:00:00Z"}
CATALOG = {
    "plans": [{"plan": "p", "name": "P"}],
    "accounts": [{"account": "acme", "name": "Acme", "plan": "p", "currency": "EUR", "timezone": "UTC"}],
}


def apply(database: str, unit_price: str, by: str = "ada") -> None:
    prices = [{**PRICE, "unit_price": unit_price}]
    store(database, parse_catalog(json.dumps({**CATALOG, "prices": prices})), by, backdates=True)


@pytest.fixture
def weir(database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: SimpleNamespace(postgres_url=database))

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, list(words))

    return run


def entries(weir: Any, *words: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(weir("activity", "--format", "json", *words).stdout)
    return listed


def edit(database: str, *statements: str) -> None:
    with psycopg.connect(database) as connection:
        for statement in statements:
            connection.execute(statement)


def as_owner(database: str, *statements: str) -> None:
    """Past every trigger."""
    edit(
        database,
        "ALTER TABLE activity_log DISABLE TRIGGER ALL",
        *statements,
        "ALTER TABLE activity_log ENABLE TRIGGER ALL",
    )


def test_a_price_that_a_file_sets_is_logged_with_its_author_and_what_it_was_before(database: str, weir: Any) -> None:
    apply(database, "0.1")
    apply(database, "0.1")
    apply(database, "0.20", by="bob")
    changed, set_first = entries(weir, "--target", "catalog.prices")
    assert [set_first[name] for name in ("action", "made_by", "before")] == ["insert", "ada", None]
    assert set_first["after"]["unit_price"] == "0.100000000000"
    assert [changed[name] for name in ("action", "made_by")] == ["update", "bob"]
    assert [changed[name]["unit_price"] for name in ("before", "after")] == ["0.100000000000", "0.200000000000"]
    assert len(entries(weir)) == 4, "a plan and an account, too, and nothing for a file that changes nothing"


def test_sql_and_deletions_are_logged_with_the_role_that_did_them(database: str, weir: Any) -> None:
    apply(database, "0.1")
    with psycopg.connect(database) as connection:
        (role,) = connection.execute("SELECT session_user").fetchone() or ("",)
        connection.execute("SELECT set_config('weir.changed_by', 'carol', true)")
        connection.execute("DELETE FROM catalog.prices")
    edit(database, "UPDATE catalog.accounts SET name = 'Acme Ltd'", "TRUNCATE catalog.limits")
    listed = entries(weir)[:3]
    assert {tuple(entry[name] for name in ("action", "target", "made_by", "role")) for entry in listed} == {
        ("delete", "catalog.prices", "carol", role),
        ("update", "catalog.accounts", role, role),
        ("truncate", "catalog.limits", role, role),
    }
    (deleted,) = (entry for entry in listed if entry["action"] == "delete")
    assert (deleted["before"]["model"], deleted["after"]) == ("m", None)


def test_who_deletes_a_plan_is_its_author(database: str, weir: Any) -> None:
    edit(database, "INSERT INTO catalog.plans (plan, name) VALUES ('q', 'Q')")
    assert weir("catalog", "delete", "plan", "q", "--by", "ada").exit_code == 0
    assert [entries(weir)[0][name] for name in ("action", "made_by")] == ["delete", "ada"]


def test_why_something_changed_is_logged_where_somebody_says_it(database: str, weir: Any, tmp_path: Path) -> None:
    file = tmp_path / "catalog.json"
    file.write_text(json.dumps({**CATALOG, "prices": [{**PRICE, "unit_price": "0.1"}]}))
    applied = weir(
        "catalog", "apply", str(file), "--no-wait", "--backdate", "--by", "ada", "--note", " offer of 4 May "
    )
    assert applied.exit_code == 0, applied.output
    assert {(entry["made_by"], entry["reason"]) for entry in entries(weir)} == {("ada", "offer of 4 May")}
    key = [word for name, value in PRICE.items() for word in (f"--{name.replace('_', '-')}", value)]
    ended = weir("catalog", "delete", "price", *key, "--no-wait", "--backdate", "--note", "never offered")
    assert ended.exit_code == 0, ended.output
    assert entries(weir)[0]["reason"] == "never offered"
    edit(database, "SELECT set_config('weir.note', 'by hand', true); UPDATE catalog.plans SET name = 'Q'")
    edit(database, "UPDATE catalog.plans SET name = 'R'")
    assert [entry["reason"] for entry in entries(weir)[:2]] == [None, "by hand"]
    assert weir("catalog", "apply", str(file), "--note", "a\x00b").exit_code == 2
    assert weir("verify").exit_code == 0


def test_a_loss_that_was_accepted_is_logged_with_who_and_why(database: str, weir: Any) -> None:
    lost = "INSERT INTO accepted_losses (topic_id, topic, partition, first_offset, end_offset, reason, accepted_by)"
    edit(database, f"{lost} VALUES ('t', 'events', 0, 7, 9, 'retention was a day', 'ada')")
    (entry,) = entries(weir)
    assert [entry[name] for name in ("action", "target", "made_by", "reason")] == [
        *("insert", "weir.accepted_losses", "ada", "retention was a day")
    ]


def test_a_straggler_that_was_approved_is_logged_with_who_and_why(database: str, weir: Any) -> None:
    decided = "INSERT INTO catalog.decisions (usage_lsn, meter, account, request_id, decision, decided_by, reason)"
    edit(database, f"{decided} VALUES (1, 'requests', 'acme', 'r', 'approve', 'ada', 'the customer was told')")
    (entry,) = entries(weir)
    assert [entry[name] for name in ("action", "target", "made_by", "reason")] == [
        *("insert", "catalog.decisions", "ada", "the customer was told")
    ]


def test_a_number_with_more_digits_than_python_takes_for_an_int_stops_neither_the_list_nor_the_check(
    database: str, weir: Any
) -> None:
    limit = "INSERT INTO catalog.limits (account, meter, period, effective_from, quantity)"
    edit(database, f"{limit} VALUES ('acme', 'requests', 'P1D', '2026-01-01Z', 1e5000)")
    (made,) = entries(weir)
    assert made["after"]["quantity"] == "1" + 5_000 * "0"
    assert weir("verify").exit_code == 0, "the entry is what was stored"


def test_a_transaction_that_is_rolled_back_logs_nothing(database: str, weir: Any) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO catalog.plans (plan, name) VALUES ('q', 'Q')")
        connection.rollback()
    assert entries(weir) == []


def test_keys_skips_and_commands_are_logged_and_no_digest_of_a_key_is(database: str, weir: Any) -> None:
    made = create(database, [Scope.READ], "ada", note="for the portal")
    revoke(database, made.id, "bob")
    skipped = 'INSERT INTO isolated_records (topic_id, topic, partition, "offset", reason, detail, asked_by)'
    edit(
        database,
        f"{skipped} VALUES ('t', 'events', 0, 7, 'skipped', 'ends drivers', 'carol')",
        f"{skipped} VALUES ('t', 'events', 0, 8, 'too_large', 'of 4 MiB', NULL)",
    )
    record_command(
        database, "redrive", "dead letters", "dan", {"reasons": ["unknown_type"]}, note="the type is known now"
    )
    listed = [[entry[name] for name in ("action", "target", "made_by", "reason")] for entry in entries(weir)[::-1]]
    assert listed == [
        ["insert", "weir.api_keys", "ada", "for the portal"],
        ["update", "weir.api_keys", "bob", "for the portal"],
        ["insert", "weir.isolated_records", "carol", "ends drivers"],
        ["redrive", "dead letters", "dan", "the type is known now"],
    ]
    assert "secret" not in json.dumps(entries(weir))


def test_who_rotates_a_key_has_ended_the_old_one_too(database: str, weir: Any) -> None:
    made = create(database, [Scope.READ], "ada")
    rotate(database, made.id, "bob", timedelta(hours=1))
    assert [(entry["action"], entry["made_by"]) for entry in entries(weir)] == [
        *(("update", "bob"), ("insert", "bob"), ("insert", "ada"))
    ]


def test_who_limits_a_key_is_named(database: str, weir: Any) -> None:
    made = create(database, [Scope.READ], "ada")
    limited = weir("keys", "limit", made.id, "--events-per-minute", "3", "--by", "bob")
    assert limited.exit_code == 0, limited.output
    assert [(entry["action"], entry["made_by"]) for entry in entries(weir)] == [("update", "bob"), ("insert", "ada")]


def test_no_change_is_that_of_whoever_made_the_one_before(database: str, weir: Any) -> None:
    """The row still has that name; who makes two changes is named by both."""
    endpoint = add(database, "https://example.com/", [EventType.STRAGGLER_HELD], "ada").endpoint
    edit(database, "UPDATE webhook_endpoints SET url = 'https://example.org/'")
    disable(database, endpoint, "ada", "moves")
    enable(database, endpoint, "ada")
    change(database, endpoint, "ada", Change(note="of the shop"))
    straggler = Waiting(1, "requests", "acme", "r")
    for decision in (Decision.APPROVE, Decision.REJECT):
        decide(database, [straggler], DecisionText(decision, "the customer was told", "ada"))
    edit(database, "UPDATE catalog.decisions SET decision = 'approve'")
    with psycopg.connect(database) as connection:
        (role,) = connection.execute("SELECT session_user").fetchone() or ("",)
    listed = [
        [entry["made_by"] for entry in entries(weir, "--target", target)[::-1]]
        for target in ("weir.webhook_endpoints", "catalog.decisions")
    ]
    assert listed == [["ada", role, "ada", "ada", "ada"], ["ada", "ada", role]]


def test_entries_that_an_owner_changed_removed_or_swapped_are_named(database: str, weir: Any) -> None:
    for number in range(1, 7):
        apply(database, f"0.{number}")
    whole = weir("verify")
    assert whole.exit_code == 0, whole.output
    newest = entries(weir)[0]["hash"]
    assert newest in whole.output
    faults = {
        "entry 3 was changed": "UPDATE activity_log SET document = replace(document, 'ada', 'eve') WHERE number = 3",
        "entry 4 is missing": "DELETE FROM activity_log WHERE number = 4",
        "does not follow entry 5": (
            "UPDATE activity_log SET previous = '', hash = encode(sha256(convert_to(document, 'UTF8')), 'hex')"
            " WHERE number = 6"
        ),
        "entry 2 is another one": (
            "UPDATE activity_log SET (document, hash) = (SELECT other.document,"
            " encode(sha256(convert_to(activity_log.previous || other.document, 'UTF8')), 'hex')"
            " FROM activity_log AS other WHERE other.number = 1) WHERE number = 2"
        ),
    }
    for named, statement in faults.items():
        with psycopg.connect(database) as connection:
            saved = connection.execute("SELECT number, document, previous, hash FROM activity_log").fetchall()
        as_owner(database, statement)
        found = weir("verify")
        assert found.exit_code == 1, named
        assert named in found.output
        with psycopg.connect(database) as connection:
            connection.execute("ALTER TABLE activity_log DISABLE TRIGGER ALL")
            connection.execute("DELETE FROM activity_log")
            connection.cursor().executemany("INSERT INTO activity_log VALUES (%s, %s, %s, %s)", saved)
            connection.execute("ALTER TABLE activity_log ENABLE TRIGGER ALL")
    as_owner(database, "DELETE FROM activity_log WHERE number > 5")
    assert weir("verify").exit_code == 0, "the end of a chain can be cut off"
    cut = weir("verify", "--contains", newest)
    assert cut.exit_code == 1
    assert newest in cut.output


@pytest.mark.parametrize(
    "statement",
    ["UPDATE activity_log SET document = '{}'", "DELETE FROM activity_log", "TRUNCATE activity_log"],
)
def test_every_role_is_refused_to_change_an_entry(database: str, statement: str) -> None:
    apply(database, "0.1")
    for before in ("SELECT 1", "SET session_replication_role = replica"):
        with pytest.raises(psycopg.errors.RaiseException, match="never changes"):
            edit(database, before, statement)


def test_editors_at_the_same_time_neither_deadlock_nor_break_the_chain(database: str, weir: Any) -> None:
    """Each changes one row of two, then the other: what locks the log before the rows would deadlock."""
    plans = [f"p{number}" for number in range(8)]
    edit(database, *(f"INSERT INTO catalog.plans (plan, name) VALUES ('{plan}', 'P')" for plan in plans))
    failures: list[Exception] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                edit(
                    database,
                    f"UPDATE catalog.plans SET name = 'a{turn}' WHERE plan = 'p{number}'",
                    "SELECT pg_sleep(0.002)",
                    f"UPDATE catalog.plans SET name = 'b{turn}' WHERE plan = 'p{number}'",
                )
        except psycopg.Error as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    found = weir("verify")
    assert found.exit_code == 0, found.output
    assert f"{8 + 8 * 10 * 2} entries" in found.output


def test_an_editor_of_parents_and_one_of_their_children_do_not_wait_for_each_other(database: str, weir: Any) -> None:
    """What stands above an account is locked by a check at the commit, among the entries of the log."""
    columns = "INSERT INTO catalog.accounts (account, name, plan, currency, timezone, parent)"
    accounts = {"top": None, "p1": None, "p2": "top", "a": None, "b": None}
    edit(
        database,
        "INSERT INTO catalog.plans (plan, name) VALUES ('p', 'P')",
        *(
            f"{columns} VALUES ('{name}', 'N', 'p', 'EUR', 'UTC', {'NULL' if parent is None else repr(parent)})"
            for name, parent in accounts.items()
        ),
    )
    failures: list[Exception] = []

    def work(*statements: str) -> None:
        try:
            for _ in range(20):
                edit(database, *statements)
        except psycopg.Error as error:
            failures.append(error)

    parents = (
        "UPDATE catalog.accounts SET name = name || '.', parent = 'p1' WHERE account = 'a'",
        "UPDATE catalog.accounts SET name = name || '.', parent = 'p2' WHERE account = 'b'",
    )
    # Longer than the other editor's commit, so that each meets the other there.
    names = [("UPDATE catalog.accounts SET name = name || '.' WHERE account = 'top'", "SELECT pg_sleep(0.01)")]
    workers = [threading.Thread(target=work, args=statements) for statements in (parents, *names)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    assert f"{6 + 20 * 3} entries" in weir("verify").output


def test_an_isolation_that_hides_the_newest_entry_fails_to_serialize_and_can_be_run_again(database: str) -> None:
    with psycopg.connect(database) as slow, psycopg.connect(database) as quick:
        slow.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        slow.execute("INSERT INTO catalog.plans (plan, name) VALUES ('slow', 'S')")
        quick.execute("INSERT INTO catalog.plans (plan, name) VALUES ('quick', 'Q')")
        quick.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            slow.commit()
        slow.execute("INSERT INTO catalog.plans (plan, name) VALUES ('slow', 'S')")
        slow.commit()


def test_a_role_that_may_only_edit_prices_is_logged_and_cannot_write_the_log(database: str, weir: Any) -> None:
    apply(database, "0.1")
    with psycopg.connect(database) as connection:
        connection.execute("CREATE ROLE test_editor_of_prices BYPASSRLS")
        try:
            connection.execute("GRANT USAGE ON SCHEMA catalog, weir TO test_editor_of_prices")
            connection.execute("GRANT SELECT, UPDATE ON catalog.prices TO test_editor_of_prices")
            connection.execute("SET LOCAL ROLE test_editor_of_prices")
            connection.execute("UPDATE catalog.prices SET unit_price = 0.3")
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute("INSERT INTO weir.activity_log (document) VALUES ('{}')")
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute("SELECT weir.record_activity('a', 'b', 'c', NULL)")
            connection.execute("RESET ROLE")
            (count,) = connection.execute("SELECT count(*) FROM activity_log").fetchone() or (0,)
            assert count == 4
        finally:
            connection.rollback()


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.text(max_size=20), min_size=1, max_size=12), st.data())
def test_any_change_of_any_entry_but_the_last_ones_absence_is_a_fault(texts: list[str], data: st.DataObject) -> None:
    made: list[Entry] = []
    for number, text in enumerate(texts, 1):
        document = json.dumps({"number": number, "made_by": text})
        previous = made[-1].hash if made else ""
        made.append(Entry(number, document, previous, sha256((previous + document).encode()).hexdigest()))
    assert list(Chain().faults(made)) == []
    place = data.draw(st.integers(0, len(made) - 1))
    entry = made[place]
    other = data.draw(
        st.sampled_from(
            [
                Entry(entry.number, entry.document + " ", entry.previous, entry.hash),
                Entry(entry.number, entry.document, entry.previous + "0", entry.hash),
                Entry(entry.number, entry.document, entry.previous, entry.hash[::-1] + "0"),
            ]
        )
    )
    assert list(Chain().faults([*made[:place], other, *made[place + 1 :]])) != []
    if place < len(made) - 1:
        assert list(Chain().faults([*made[:place], *made[place + 1 :]])) != []
