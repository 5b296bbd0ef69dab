"""Endpoints of webhooks over HTTP: what `weir webhooks` does, with a key that may, for the accounts that it names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import ANY

import psycopg
import pytest
from jsonschema import Draft202012Validator
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from api import key_store
from api.endpoint_store import EndpointStore
from api.openapi import document
from api.reader import STATEMENT_TIMEOUT_SECONDS
from api.webhook_endpoints import MAX_ENDPOINTS
from jobs.queries.activity import ActivityQuery, activity_rows
from metering.api_keys import Scope
from monitoring.metrics import ApiRoute
from tests.api.serving import Answer, Server, serving, start_ingestion
from tests.api.test_events_in import refused
from tests.conftest import fresh_database
from tests.database_rows import write
from tests.waiting import wait_until
from tests.webhooks.receiver import Call, Receiver
from tests.webhooks.sending import hold, now_clock, queue, rows, send_all
from webhooks.endpoints import MAX_SECRETS
from webhooks.event_types import OF_NO_ACCOUNT, EventType
from webhooks.outcomes import State
from webhooks.signing import kind_of

PATHS = document()["paths"]
ALL = ApiRoute.WEBHOOK_ENDPOINTS.value
URL = "https://example.com/weir"


@pytest.fixture(scope="module")
def server(bootstrap: str, postgres_url: str) -> Iterator[Server]:
    with fresh_database(postgres_url) as database:
        start_ingestion(database)
        with serving(bootstrap, database) as running:
            yield running


@pytest.fixture(autouse=True)
def _no_endpoint(server: Server) -> None:
    with psycopg.connect(server.database) as session:
        session.execute("TRUNCATE webhook_endpoints, webhook_secrets, webhook_deliveries, webhook_attempts")
        session.execute("DELETE FROM webhook_events")
        session.execute("DELETE FROM stragglers")


@pytest.fixture(scope="module")
def operator(server: Server) -> str:
    return key_of(server, Scope.WEBHOOKS)


@pytest.fixture(scope="module")
def acme(server: Server) -> str:
    return key_of(server, Scope.WEBHOOKS, "acme", "acme-2")


def key_of(server: Server, scope: Scope, *accounts: str) -> str:
    made = key_store.create(server.database, [scope], "test", accounts=accounts)
    wait_until(lambda: call(server, made.key, "GET", ALL).status != 401, "the key", 60, every_seconds=0.1)
    return made.key


def call(server: Server, key: str, method: str, path: str, body: Any = None) -> Answer:
    """Answers are as the OpenAPI document has them, and secrets are in no cache."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    answer = server.request(method, path, None if body is None else json.dumps(body).encode(), headers)
    if answer.status < 300:
        form = next(form for form in (ApiRoute(form) for form in PATHS if form.startswith(ALL)) if matches(form, path))
        content = PATHS[form.value][method.lower()]["responses"][str(answer.status)]["content"]
        Draft202012Validator(content["application/json"]["schema"]).validate(answer.json)
        assert answer.headers["cache-control"] == "no-store"
    return answer


def matches(form: str, path: str) -> bool:
    parts, given = form.split("/"), path.partition("?")[0].split("/")
    return len(parts) == len(given) and all(
        part == value or part.startswith("{") for part, value in zip(parts, given, strict=True)
    )


def added(server: Server, key: str, **body: Any) -> dict[str, Any]:
    answer = call(server, key, "POST", ALL, {"url": URL, **body})
    assert answer.status == 201, answer.body
    made: dict[str, Any] = answer.json["data"]
    return made


def test_an_endpoint_is_added_read_changed_disabled_enabled_rotated_and_removed(server: Server, operator: str) -> None:
    made = added(server, operator, accounts=["acme"], events=["weir.straggler.held"], note="ERP")
    path = f"{ALL}/{made['endpoint']}"
    assert kind_of(made.pop("verifies_with"))
    assert call(server, operator, "GET", path).json == {"data": made}
    assert call(server, operator, "GET", ALL).json == {"data": [made]}
    assert (made["url"], made["accounts"], made["note"], made["state"]) == (URL, ["acme"], "ERP", "enabled")
    changed = call(
        server,
        operator,
        "PATCH",
        path,
        {"url": "https://example.org/", "events": ["weir.invoice.issued"], "note": None},
    ).json["data"]
    assert changed == {**made, "url": "https://example.org/", "events": ["weir.invoice.issued"], "note": None}
    disable = {"state": "disabled", "reason": "moves"}
    for _ in range(2):
        disabled = call(server, operator, "PATCH", path, disable).json["data"]
        assert disabled == {**changed, "state": "disabled", "disabled_reason": "moves", "disabled_at": ANY}
    assert call(server, operator, "PATCH", path, {"state": "enabled"}).json["data"] == changed
    rotated = call(server, operator, "POST", f"{path}/rotate", {"overlap_hours": 1}).json["data"]
    assert kind_of(rotated["verifies_with"])
    assert rows(server.database, "SELECT count(*)::int, count(expires_at)::int FROM webhook_secrets") == [(2, 1)]
    removed = call(server, operator, "DELETE", path).json["data"]
    assert removed == {"endpoint": made["endpoint"], "deliveries": dict.fromkeys(State, 0)}
    refused(call(server, operator, "GET", path), 404, "No endpoint of this name")


def test_a_secret_is_shown_once_and_never_the_private_one(server: Server, operator: str) -> None:
    made = added(server, operator, signature="v1a")
    assert made["verifies_with"].startswith("whpk_")
    path = f"{ALL}/{made['endpoint']}"
    rotated = call(server, operator, "POST", f"{path}/rotate", {})
    secrets = [secret for (secret,) in rows(server.database, "SELECT secret FROM webhook_secrets")]
    shown = [call(server, operator, "GET", each).body.decode() for each in (ALL, path, f"{path}/deliveries")]
    shown.append(call(server, operator, "PATCH", path, {"note": "x"}).body.decode())
    assert len(secrets) == 2
    assert not any(secret in text for secret in secrets for text in (*shown, rotated.body.decode()))
    assert not any("whpk_" in text for text in shown)


def test_a_receiver_verifies_calls_with_what_the_answers_showed(server: Server, operator: str) -> None:
    """Also during a rotation, with the secret before and with the new one."""
    made = added(server, operator, events=["weir.straggler.held"])
    path = f"{ALL}/{made['endpoint']}"
    rotated = call(server, operator, "POST", f"{path}/rotate", {}).json["data"]

    async def delivered() -> list[Call]:
        async with Receiver().serving() as receiver:
            rows(server.database, "UPDATE webhook_endpoints SET url = %s RETURNING 1", receiver.url)
            hold(server.database, ["acme"])
            await send_all(server.database, now_clock())
        return receiver.taken

    (sent,) = asyncio.run(delivered())
    # The clock of the sender is a minute ahead, within the tolerance of a receiver.
    for secret in (made["verifies_with"], rotated["verifies_with"]):
        assert Webhook(secret).verify(sent.body, sent.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(made["verifies_with"]).verify(sent.body + b" ", sent.headers)


def test_slack_keeps_its_url_secret_and_mail_has_no_secret(server: Server, operator: str) -> None:
    slack = "https://hooks.slack.com/services/T000/B000/SECRET"
    refused(call(server, operator, "POST", ALL, {"url": slack}), 400, "must be slack for this URL")
    made = added(server, operator, url=slack, kind="slack")
    assert (made["verifies_with"], made["url"]) == (None, "https://hooks.slack.com/…")
    path = f"{ALL}/{made['endpoint']}"
    refused(call(server, operator, "PATCH", path, {"url": f"{slack}2"}), 409, "its secret")
    refused(call(server, operator, "POST", f"{path}/rotate", {}), 409, "signs nothing")
    assert added(server, operator, url="ops@example.com", kind="mail")["verifies_with"] is None


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://10.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:169.254.169.254]/",
        "https://u:p@a.com/",
        *("nonsense", "", "https://a.com/\u0000", "file:///etc/passwd", "https://127.0.0.1:6443/"),
    ],
)
def test_no_private_address_is_added_nor_written_into_an_endpoint(server: Server, operator: str, url: str) -> None:
    refused(call(server, operator, "POST", ALL, {"url": url}), 400, "url")
    path = f"{ALL}/{added(server, operator)['endpoint']}"
    refused(call(server, operator, "PATCH", path, {"url": url}), 400, "url")
    assert rows(server.database, "SELECT url FROM webhook_endpoints") == [(URL,)]


def test_a_key_of_accounts_adds_sees_and_changes_endpoints_of_these_alone(
    server: Server, operator: str, acme: str
) -> None:
    others = [added(server, operator, **given)["endpoint"] for given in ({}, {"accounts": ["globex"]})]
    others.append(added(server, operator, accounts=["acme", "globex"])["endpoint"])
    own = added(server, acme)
    assert own["accounts"] == ["acme", "acme-2"]
    assert "changed_by" not in own, "who of the operator changed it is no customer's business"
    assert [row["endpoint"] for row in call(server, acme, "GET", ALL).json["data"]] == [own["endpoint"]]
    assert len(call(server, operator, "GET", ALL).json["data"]) == 4
    refused(call(server, acme, "POST", ALL, {"url": URL, "accounts": ["globex"]}), 403, "globex")
    refused(call(server, acme, "POST", ALL, {"url": "a@example.com", "kind": "mail"}), 403, "mail")
    only = {"url": URL, "events": [str(event) for event in OF_NO_ACCOUNT]}
    refused(call(server, acme, "POST", ALL, only), 400, "of no account")
    before = rows(server.database, "SELECT * FROM webhook_endpoints ORDER BY 1")
    for endpoint in (*others, "we_0123456789ab", "%00"):
        path = f"{ALL}/{endpoint}"
        for method, end, body in (
            *(("GET", "", None), ("PATCH", "", {"note": "mine"}), ("DELETE", "", None)),
            *(("POST", "/rotate", {}), ("GET", "/deliveries", None), ("POST", "/deliveries/1/resend", None)),
            ("GET", "/deliveries/1/attempts", None),
        ):
            refused(call(server, acme, method, path + end, body), 404, "No endpoint of this name")
    assert rows(server.database, "SELECT * FROM webhook_endpoints ORDER BY 1") == before
    refused(call(server, acme, "PATCH", f"{ALL}/{own['endpoint']}", {"accounts": ["globex"]}), 400, "no such member")


def test_a_key_of_accounts_writes_no_address_of_mail_into_an_endpoint_that_the_operator_made(
    server: Server, operator: str, acme: str
) -> None:
    made = added(server, operator, url="ops@example.com", kind="mail", accounts=["acme"])
    path = f"{ALL}/{made['endpoint']}"
    refused(call(server, acme, "PATCH", path, {"url": "victim@example.org", "note": "x"}), 403, "no address of mail")
    assert rows(server.database, "SELECT url, note FROM webhook_endpoints") == [("ops@example.com", None)]
    assert call(server, acme, "PATCH", path, {"note": "ours"}).json["data"]["note"] == "ours"
    assert call(server, operator, "PATCH", path, {"url": "new@example.com"}).json["data"]["url"] == "new@example.com"


def test_a_customer_does_not_learn_what_a_name_of_weirs_own_network_stands_for(
    server: Server, operator: str, acme: str
) -> None:
    made = added(server, acme, url="https://weir-postgres.metering.svc/", events=["weir.straggler.held"])
    hold(server.database, ["acme"])
    queue(server.database)
    path = f"{ALL}/{made['endpoint']}/deliveries"
    (delivery,) = call(server, acme, "GET", path).json["data"]
    attempt = {"number": delivery["number"], "endpoint": made["endpoint"], "account": "acme", "duration_ms": 7}
    error = "weir-postgres.metering.svc is 10.1.2.3, which is no public address"
    write(server.database, "webhook_attempts", {**attempt, "attempted_at": "2026-11-01T00:00:00Z", "error": error})
    for key, told in ((operator, error), (acme, "the host has no public address")):
        assert [row["last_error"] for row in call(server, key, "GET", path).json["data"]] == [told]
        log = call(server, key, "GET", f"{path}/{delivery['number']}/attempts").json["data"]
        assert [entry["error"] for entry in log] == [told]


def test_accounts_have_so_many_endpoints_and_no_more(server: Server, operator: str, acme: str) -> None:
    with psycopg.connect(server.database) as session:
        session.execute(
            "INSERT INTO webhook_endpoints (endpoint, url, events, accounts, changed_by)"
            " SELECT 'we_' || n, 'https://a.com/', '{weir.watch.hit}', '{acme}', 'x' FROM generate_series(1, %s) AS n",
            [MAX_ENDPOINTS],
        )
    refused(call(server, acme, "POST", ALL, {"url": URL}), 409, "endpoints already")
    assert call(server, operator, "POST", ALL, {"url": URL, "accounts": ["acme"]}).status == 201


def test_a_key_makes_no_more_secrets_than_a_call_can_be_signed_with(server: Server, acme: str) -> None:
    """Each signs each call, and one sender calls for all."""
    path = f"{ALL}/{added(server, acme)['endpoint']}/rotate"
    for _ in range(MAX_SECRETS - 1):
        assert call(server, acme, "POST", path, {"overlap_hours": 8_784}).status == 200
    refused(call(server, acme, "POST", path, {"overlap_hours": 1}), 409, "sign already")
    ends = "SELECT count(*)::int FROM webhook_secrets WHERE expires_at < now() + interval '2 hours'"
    assert rows(server.database, ends) == [(0,)]
    assert call(server, acme, "POST", path, {"overlap_hours": 0}).status == 200
    assert rows(server.database, "SELECT count(*)::int FROM webhook_secrets") == [(1,)]


@pytest.mark.parametrize("scope", [scope for scope in Scope if scope is not Scope.WEBHOOKS])
def test_no_other_scope_chooses_where_data_goes(server: Server, operator: str, scope: Scope) -> None:
    path = f"{ALL}/{added(server, operator)['endpoint']}"
    key = key_of(server, scope)
    for method, where in (
        *(("GET", ALL), ("POST", ALL), ("GET", path), ("PATCH", path), ("DELETE", path), ("POST", f"{path}/rotate")),
        *(("GET", f"{path}/deliveries"), ("POST", f"{path}/deliveries/1/resend")),
    ):
        refused(call(server, key, method, where, {"url": URL}), 403, "does not have the scope webhooks")
    assert call(server, operator, "GET", "/v1/usage").status == 403, "and this one reads no usage"


def test_deliveries_are_listed_by_page_and_one_is_sent_again_with_its_id(server: Server, operator: str) -> None:
    made = added(server, operator, events=["weir.straggler.held"])
    path = f"{ALL}/{made['endpoint']}/deliveries"
    hold(server.database, ["acme", "globex", "acme"])
    queue(server.database)
    with psycopg.connect(server.database) as session:
        session.execute(
            "UPDATE webhook_deliveries SET state = 'dead', settled_at = now(), attempts = 10 WHERE account = 'globex'"
        )
    first = call(server, operator, "GET", f"{path}?limit=2").json
    second = call(server, operator, "GET", f"{path}?limit=2&cursor={first['next']}").json
    found = [*first["data"], *second["data"]]
    assert [row["account"] for row in found] == ["acme", "globex", "acme"]
    assert second["next"] is None
    (dead,) = call(server, operator, "GET", f"{path}?state=dead").json["data"]
    assert dead == found[1]
    sent = call(server, operator, "POST", f"{path}/{dead['number']}/resend")
    attempt = {"attempted_at": "2026-11-01T00:00:00Z", "status": 500, "error": None, "duration_ms": 7}
    write(
        server.database,
        "webhook_attempts",
        *(
            {**attempt, "number": dead["number"], "endpoint": made["endpoint"], "account": "globex", **later}
            for later in ({"attempted_at": "2026-11-01T00:00:05Z", "status": None, "error": "timeout"}, {})
        ),
    )
    log = call(server, operator, "GET", f"{path}/{dead['number']}/attempts").json["data"]
    assert [(entry["status"], entry["error"]) for entry in log] == [(500, None), (None, "timeout")]
    assert log[0] == attempt
    assert call(server, operator, "GET", f"{path}/{found[0]['number']}/attempts").json == {"data": []}
    refused(call(server, operator, "GET", f"{path}/999999/attempts"), 404, "No delivery")
    assert (sent.status, sent.json) == (202, {"data": {"endpoint": made["endpoint"], "number": dead["number"]}})
    (again,) = [row for row in call(server, operator, "GET", path).json["data"] if row["number"] == dead["number"]]
    assert (again["event_id"], again["state"], again["attempts"]) == (dead["event_id"], "waiting", 0)
    refused(call(server, operator, "POST", f"{path}/999999/resend"), 404, "No delivery")
    refused(call(server, operator, "POST", f"{path}/x/resend"), 400, "number")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": 1},
        {"url": "https://a.com/", "kind": "fax"},
        {"url": URL, "events": []},
        {"url": URL, "events": ["x"]},
        {"url": URL, "accounts": ["a\0"]},
        {"url": URL, "accounts": [""]},
        {"url": URL, "note": "\ud800"},
        {"url": URL, "x": 1},
        {"url": URL, "signature": "v2"},
        {"url": "a@example.com", "kind": "mail", "signature": "v1a"},
    ],
)
def test_what_is_no_endpoint_is_refused(server: Server, operator: str, body: dict[str, Any]) -> None:
    assert call(server, operator, "POST", ALL, body).status == 400
    assert call(server, operator, "GET", ALL).json == {"data": []}


@pytest.mark.parametrize(
    "body",
    [
        {"state": "disabled"},
        {"reason": "x"},
        {"state": "enabled", "reason": "x"},
        {"events": []},
        {"state": "gone"},
        [],
    ],
)
def test_what_is_no_change_is_refused(server: Server, operator: str, body: Any) -> None:
    made = added(server, operator)
    assert call(server, operator, "PATCH", f"{ALL}/{made['endpoint']}", body).status == 400
    del made["verifies_with"]
    assert call(server, operator, "GET", ALL).json == {"data": [made]}


def test_a_change_that_also_enables_is_made_whole_or_not_at_all(server: Server, operator: str) -> None:
    made = added(server, operator, events=["weir.straggler.held"])
    path = f"{ALL}/{made['endpoint']}"
    hold(server.database, ["acme"])
    queue(server.database)
    disabled = call(server, operator, "PATCH", path, {"state": "disabled", "reason": "moves"}).json["data"]
    moved = {"url": "https://example.org/", "state": "enabled"}
    with psycopg.connect(server.database) as sender, ThreadPoolExecutor(1) as threads:
        sender.execute("SELECT FROM webhook_deliveries FOR UPDATE")
        answer = threads.submit(call, server, operator, "PATCH", path, moved)
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        wait_until(
            lambda: bool(rows(server.database, waiting)), "the change to wait for the sender", 60, every_seconds=0.1
        )
        sender.execute(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS waiting")
        refused(answer.result(), 503, "The database does not answer")
    assert call(server, operator, "GET", path).json["data"] == disabled
    private = {"url": "https://10.0.0.1/", "state": "enabled"}
    refused(call(server, operator, "PATCH", path, private), 400, "no public address")
    assert call(server, operator, "GET", path).json["data"] == disabled
    enabled = {"url": moved["url"], "state": "enabled", "disabled_at": None, "disabled_reason": None}
    assert call(server, operator, "PATCH", path, moved).json["data"] == {**disabled, **enabled}


def test_no_statement_about_endpoints_takes_longer_than_one_of_a_query(server: Server) -> None:
    def asked(database: str) -> Any:
        return rows(database, "SHOW statement_timeout")

    store = EndpointStore(server.database)
    try:
        assert asyncio.run(store.run(asked)) == [(f"{STATEMENT_TIMEOUT_SECONDS}s",)]
    finally:
        store.close()


def test_who_changed_it_is_in_the_activity_log(server: Server, operator: str) -> None:
    made = added(server, operator)
    call(server, operator, "PATCH", f"{ALL}/{made['endpoint']}", {"note": "x"})
    author = f"key {operator.split('_')[1]}"
    with psycopg.connect(server.database, row_factory=dict_row) as session:
        found = activity_rows(session, ActivityQuery(made_by=author, target="weir.webhook_endpoints"))
        entries = [entry for entry in found if (entry["after"] or {}).get("endpoint") == made["endpoint"]]
    assert [entry["action"] for entry in entries] == ["update", "insert"]
    assert made["changed_by"] == author
    assert set(made["events"]) == set(EventType)


def test_a_login_of_the_apis_own_says_that_it_manages_no_endpoints(bootstrap: str, database: str) -> None:
    start_ingestion(database)
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("CREATE ROLE weir_only_reads LOGIN PASSWORD 'x'; GRANT weir_api_reader TO weir_only_reads")
        owner.execute("GRANT SELECT ON api_keys, jobs, topic_removals TO weir_only_reads")
        try:
            with serving(bootstrap, make_conninfo(database, user="weir_only_reads", password="x")) as running:
                made = key_store.create(database, [Scope.WEBHOOKS], "test")
                wait_until(lambda: call(running, made.key, "GET", ALL).status != 401, "the key", 60, every_seconds=0.1)
                refused(call(running, made.key, "GET", ALL), 501, "weir webhooks")
                refused(call(running, made.key, "POST", ALL, {"url": URL}), 501, "weir webhooks")
        finally:
            owner.execute("DROP OWNED BY weir_only_reads; DROP ROLE weir_only_reads")
