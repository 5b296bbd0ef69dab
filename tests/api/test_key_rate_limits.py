"""Rate limits of keys over HTTP: on every route, before anything is written, and changed while the API runs."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from google.rpc.status_pb2 import Status

from api import key_store
from api.database_poll import READ_EVERY_SECONDS
from api.otlp_protobuf import PROTOBUF
from metering.api_keys import RateLimits
from tests.api.serving import Answer, Server
from tests.api.test_events_in import OPENMETER, OWN, V3, encoded, event, refused, usable
from tests.api.test_traces import account, posted
from tests.rules.test_otlp import CALL
from tests.waiting import wait_until

WITHIN_SECONDS = 5


def limited(server: Server, requests: int | None = None, events: int | None = None, **given: list[str]) -> str:
    """A key with limits, which has sent no event yet."""
    return usable(server, limits=RateLimits(requests, events), **given)


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("path", [OWN, OPENMETER, V3])
def test_a_batch_is_taken_up_to_the_limit_and_one_event_more_is_refused_whole(server: Server, path: str) -> None:
    key, subject = limited(server, events=5), account()

    def post(events: int) -> Answer:
        return server.post(path, encoded([event(subject=subject) for _ in range(events)]), key)

    assert post(4).status in (200, 202, 204)
    before = time.time()
    answer = post(2)
    after = time.time()
    assert post(1).status in (200, 202, 204)
    refused(answer, 429, "may send 5 events a minute to each server", "send the same request again after")
    wait = int(answer.headers["retry-after"])
    assert 1 <= wait <= 12
    assert (answer.headers["x-ratelimit-limit"], answer.headers["x-ratelimit-remaining"]) == ("5", "1")
    assert before + wait - 1 <= int(answer.headers["x-ratelimit-reset"]) <= after + wait + 1
    assert answer.headers["ratelimit"] == f'"events_per_minute";r=1;t={wait}'
    assert answer.headers["ratelimit-policy"] == '"events_per_minute";q=5;w=60'
    assert len([name for name, _, _ in server.records() if name == subject.encode()]) == 5


def test_exporters_of_spans_get_refusals_in_their_own_protocol(server: Server) -> None:
    key, name = limited(server, events=2, sources=["gateway"]), account()
    call = CALL | {"weir.account": name}
    assert posted(server, key, call, call, {"http.route": "/"}).status == 200
    answer = posted(server, key, call)
    assert (answer.status, answer.headers["content-type"]) == (429, PROTOBUF)
    assert int(answer.headers["retry-after"]) > 0
    assert "2 events a minute" in Status.FromString(answer.body).message


def test_too_many_requests_are_refused_before_their_body_is_read(server: Server) -> None:
    key = limited(server, requests=1)
    answers = [server.post(OWN, b"", key) for _ in range(10)]
    assert {answer.status for answer in answers} >= {429}
    assert next(answer for answer in answers if answer.status == 429).headers["retry-after"] == "1"
    wait_until(lambda: server.post(OWN, encoded(event()), key).status == 200, "a second", 30, every_seconds=1.1)


def test_a_limit_that_is_changed_holds_within_five_seconds_and_stays_with_the_next_key(server: Server) -> None:
    key = limited(server, events=1)
    key_id = key.split("_")[1]
    assert server.post(OWN, encoded(event()), key).status == 200
    assert server.post(OWN, encoded(event()), key).status == 429
    key_store.limit(server.database, key_id, "ada", RateLimits(None, 3))
    assert READ_EVERY_SECONDS < WITHIN_SECONDS
    # Under the limit of before the next event would be taken after a minute.
    wait_until(lambda: server.post(OWN, encoded(event()), key).status == 200, "the change", 30, every_seconds=0.2)
    rotated = key_store.rotate(server.database, key_id, "test", timedelta(hours=1))
    rows = {
        row["id"]: (row["requests_per_second"], row["events_per_minute"]) for row in key_store.listed(server.database)
    }
    assert (rotated.limits, rows[rotated.id]) == (RateLimits(None, 3), (None, 3))
