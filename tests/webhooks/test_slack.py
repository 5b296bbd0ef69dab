"""Endpoints of Slack: messages for people by the same outbox, with a URL that nobody is shown."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from urllib.parse import unquote

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployment.errors import CannotRun
from jobs.runtime.errors import Refused
from jobs.runtime.postgres.downgrade import downgrade
from tests.webhooks.receiver import Answer, Receiver
from tests.webhooks.sending import add_endpoint, hold, now_clock, rows, run, send_all, states
from webhooks.delivering import Delivering
from webhooks.endpoints import deliveries, listed, rotate
from webhooks.event_types import EventType
from webhooks.kinds import Kind
from webhooks.outbox import Due, Lane
from webhooks.outcomes import Attempt
from webhooks.posting import MAX_ERROR_CHARACTERS, Poster
from webhooks.slack import MAX_FIELDS, shown_url, slack_message
from webhooks.wording import SENTENCES, sentence

VALUES = st.one_of(st.text(), st.integers(), st.none(), st.lists(st.text(), max_size=2))


def body(kind: str, data: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "timestamp": "2026-11-01T00:00:00+00:00", "data": data}).encode()


def test_each_type_has_a_sentence() -> None:
    assert set(SENTENCES) == set(EventType)


@pytest.mark.parametrize("kind", [EventType.THRESHOLD_CROSSED, EventType.THRESHOLD_RETRACTED])
def test_a_threshold_of_one_model_is_not_called_one_of_all(kind: EventType) -> None:
    data = {"account": "acme", "threshold": "100", "meter": "tokens", "currency": None, "period": "P1D", "value": "120"}
    data["period_start"] = "2026-11-01"
    assert " 100 of tokens of gpt-4o " in sentence(kind, {**data, "model": "gpt-4o"})
    of_all = sentence(kind, {**data, "model": None})
    assert sentence(kind, data) == of_all
    assert "100 of tokens in its" in of_all.replace(" again", "")
    assert "in its day from 2026-11-01" in of_all
    assert "in its month from 2026-11-01" in sentence(kind, {**data, "period": "P1M"})
    assert " 100 of EUR of tokens " in sentence(kind, {**data, "currency": "EUR"})
    assert " 100 of EUR " in sentence(kind, {**data, "meter": None, "currency": "EUR"})


@given(st.sampled_from([*EventType, "weir.of.a.later.release"]), st.dictionaries(st.text(min_size=1), VALUES))
def test_no_value_is_markup_or_makes_a_message_that_slack_refuses(kind: str, data: dict[str, Any]) -> None:
    message = json.loads(
        slack_message("evt_1", body(kind, {**data, "account": "<!channel> & <@U1>", "source": "<x>@all[x](https://x)"}))
    )
    assert "<" not in message["text"]
    assert ">" not in message["text"]
    assert not re.search(r"@\w", message["text"])
    assert "](" not in message["text"]
    assert 0 < len(message["text"]) < 40_000
    section, context = message["blocks"]
    texts = [section["text"], *section.get("fields", []), *context["elements"]]
    assert {text["type"] for text in texts} == {"plain_text"}
    assert all(0 < len(text["text"]) <= 2_000 for text in texts)
    assert len(section["fields"]) <= MAX_FIELDS
    assert "evt_1" in context["elements"][0]["text"]


def test_a_message_says_what_happened_in_the_order_of_events_and_once_an_attempt_has_succeeded(database: str) -> None:
    answers = iter([Answer(500, takes=False), Answer(429, takes=False, headers={"retry-after": "30"})])
    receiver = Receiver(lambda _: next(answers, Answer(200)))

    async def deliver() -> None:
        async with receiver.serving():
            add_endpoint(database, receiver.url, kind=Kind.SLACK)
            hold(database, ["acme", "acme"])
            await send_all(database, now_clock())

    run(deliver)
    assert states(database) == {"delivered": 2}
    first, second = (json.loads(call.body) for call in receiver.taken)
    assert first["text"].startswith("Late usage of acme waits for a decision")
    assert "straggler: 1/requests" in {field["text"] for field in first["blocks"][0]["fields"]}
    assert "straggler: 2/requests" in {field["text"] for field in second["blocks"][0]["fields"]}
    assert not any(name.startswith("webhook-") for name in receiver.taken[0].headers)
    assert len(receiver.calls) == 4


def test_its_url_is_in_no_list_log_or_error(database: str) -> None:
    receiver = Receiver(lambda _: Answer(302, takes=False, headers={"location": "http://127.0.0.1:1/"}))

    async def deliver() -> None:
        async with receiver.serving():
            url = f"{receiver.url}/SECRET"
            endpoint = add_endpoint(database, url, kind=Kind.SLACK)
            assert endpoint.verifies_with == ""
            hold(database, ["acme"])
            poster = Poster(allows_private=False)
            # Plain HTTP to a private address: the refusal names the URL.
            await send_all(database, now_clock(), poster=poster)
            found: list[Any] = [await asyncio.to_thread(listed, database)]
            found.append(await asyncio.to_thread(lambda: list(deliveries(database, endpoint.endpoint, None))))
            assert [(row["kind"], row["url"]) for row in found[0]] == [("slack", shown_url(url))]
            assert "must begin with https://" in found[1][0]["last_error"]
            tables = ("activity_log", "webhook_attempts", "webhook_endpoints")
            found += [rows(database, f"SELECT t::text FROM {table} AS t") for table in tables]
            assert "SECRET" not in str(found)

    run(deliver)
    assert receiver.connections == 0
    assert states(database) == {"dead": 1}


@pytest.mark.parametrize("path", ["/services/T1/SECRET", f"/services/{'x' * 200}SECRET", "/a%20b/SECRET?sig=SECRET"])
@pytest.mark.parametrize(
    "answer", ["Cannot POST {path}", "{padding} Cannot POST {path}", "no {url} here", "{decoded}?"]
)
def test_a_server_that_answers_with_its_path_shows_it_to_nobody(path: str, answer: str) -> None:
    url = f"https://chat.example.com{path}"
    padding = "." * (MAX_ERROR_CHARACTERS - len("  Cannot POST ") - path.index("SECRET") - 3)
    text = answer.format(path=path, url=url, padding=padding, decoded=unquote(path))[:MAX_ERROR_CHARACTERS]

    async def post(*_: object) -> Attempt:
        return Attempt(404, text)

    async def mail(*_: object) -> Attempt:
        raise AssertionError

    due = Due(Lane("e", "", Kind.SLACK), 1, "evt_1", shown_url(url), body(EventType.WATCH_HIT, {}), 0, [url])
    attempt = asyncio.run(Delivering(post, post, mail)(due, now_clock().now()))
    assert attempt.status == 404
    assert attempt.error
    assert "SEC" not in attempt.error
    assert "xxx" not in attempt.error


@pytest.mark.parametrize(("status", "state"), [(404, "dead"), (302, "dead"), (410, "waiting")])
def test_what_slack_answers_where_it_refuses_is_in_the_log_and_410_disables(
    database: str, status: int, state: str
) -> None:
    headers = {"location": "http://127.0.0.1:1/"}
    receiver = Receiver(lambda _: Answer(status, takes=False, headers=headers, body="no_service\r\n"))

    async def deliver() -> None:
        async with receiver.serving():
            add_endpoint(database, receiver.url, kind=Kind.SLACK)
            hold(database, ["acme"])
            await send_all(database, now_clock())

    run(deliver)
    assert states(database) == {state: 1}
    assert set(rows(database, "SELECT status::int, error FROM webhook_attempts")) == {(status, "no_service")}
    assert {call.headers["accept-encoding"] for call in receiver.calls} == {"identity"}, "it can be read as it comes"
    assert listed(database)[0]["state"] == ("disabled" if status == 410 else "enabled")


def test_an_endpoint_that_signs_nothing_is_not_rotated(database: str) -> None:
    endpoint = add_endpoint(database, "https://example.com/", kind=Kind.SLACK).endpoint
    with pytest.raises(CannotRun, match="signs nothing"):
        rotate(database, endpoint, "ada", now_clock().now() - now_clock().now())


def test_an_earlier_release_would_call_it_as_a_webhook_so_a_downgrade_is_refused(database: str) -> None:
    add_endpoint(database, "https://example.com/", kind=Kind.SLACK)
    with pytest.raises(Refused, match="endpoints of Slack"):
        downgrade(database, "0110")
    with psycopg.connect(database) as connection:
        connection.execute("TRUNCATE webhook_endpoints, webhook_secrets CASCADE")
    downgrade(database, "0110")
