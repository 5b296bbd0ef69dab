"""Events that are posted: what Kafka gets, byte for byte, and what the sender is told."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from api import key_store
from metering.api_keys import Scope
from tests.api.serving import Answer, Server, start_ingestion
from tests.waiting import wait_until

SECONDS = {"type": "number", "minimum": 0, "x-weir-column": "gpu_seconds"}
OPENMETER, V3, OWN = "/api/v1/events", "/api/v3/openmeter/events", "/v1/events"


def event(**changes: Any) -> dict[str, Any]:
    """A valid event of an account of its own."""
    mark = uuid4().hex
    given = {
        "specversion": "1.0",
        "type": "ai.inference.usage.v1",
        "source": "gateway",
        "id": mark,
        "subject": f"acme-{mark}",
        "time": "2026-11-27T10:00:00Z",
        "data": {"request_id": mark, "model": "gpt-4o", "status": "completed", "input_tokens": 7},
        **changes,
    }
    return {name: value for name, value in given.items() if value is not None}


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.fixture(scope="module")
def key(server: Server) -> str:
    return usable(server, scopes=[Scope.INGEST])


def usable(server: Server, **given: Any) -> str:
    """A new key, once the server knows it."""
    made = key_store.create(server.database, given.pop("scopes", [Scope.INGEST]), "test", **given)
    wait_until(lambda: server.post(OWN, b"", made.key).status != 401, "the key being known", 60, every_seconds=0.1)
    return made.key


def values(server: Server, mark: str) -> list[bytes]:
    return [value for _, value, _ in server.records() if mark.encode() in value]


def test_events_of_litellm_become_records_byte_for_byte_keyed_by_subject(server: Server, key: str) -> None:
    sent = event(type="litellm_tokens", data={"model": "gpt-4o", "prompt_tokens": 7, "completion_tokens": 2})
    body = json.dumps(sent, indent=1).encode()
    answer = server.post(OPENMETER, body, key, "application/cloudevents+json")
    assert (answer.status, answer.body) == (204, b"")
    found = [record for record in server.records() if record[1] == body]
    assert [(name, headers["weir-door"]) for name, _, headers in found] == [(sent["subject"].encode(), b"test")]


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize(
    ("path", "status"), [(OPENMETER, 204), (V3, 202), (OWN, 200)], ids=["openmeter", "openmeter_v3", "own"]
)
@pytest.mark.parametrize("content_type", ["application/cloudevents-batch+json", "application/json"])
def test_each_element_of_an_array_is_a_record_as_it_was_written(
    server: Server, key: str, path: str, status: int, content_type: str
) -> None:
    mark = uuid4().hex
    written = [json.dumps(event(id=f"{mark}-{n}"), indent=n or None).encode() for n in range(3)]
    answer = server.post(path, b" [" + b" ,\n".join(written) + b"] ", key, content_type)
    assert answer.status == status
    assert sorted(values(server, mark)) == sorted(written)


def test_a_path_with_a_slash_too_many_is_understood_where_events_are_posted_and_nowhere_redirected(
    server: Server, key: str
) -> None:
    """Behind a proxy with TLS a redirect would lead to plain HTTP, with the key."""
    for path, status in ((OPENMETER, 204), (V3, 202), (OWN, 200)):
        sent = encoded(event())
        assert server.post(f"{path}/", sent, key).status == status
        assert sent in [value for _, value, _ in server.records()]
    refused(server.request("GET", "/v1/usage/", None, {"Authorization": f"Bearer {key}"}), 404)


def test_lines_of_json_and_gzip_are_taken(server: Server, key: str) -> None:
    mark = uuid4().hex
    written = [encoded(event(id=f"{mark}-{n}")) for n in range(2)]
    body = gzip.compress(b"\r\n".join(written) + b"\n\n")
    answer = server.post(OWN, body, key, "application/x-ndjson", Content_Encoding="gzip")
    assert (answer.status, answer.json["accepted"]) == (200, 2)
    assert sorted(values(server, mark)) == sorted(written)


def test_an_event_in_binary_mode_is_the_same_event(server: Server, key: str) -> None:
    sent = event(subject="Zoë 1")
    headers = {f"ce-{name}": str(sent[name]) for name in ("specversion", "type", "source", "id", "time")}
    data = b'{"request_id": "r",  "model": "gpt-4o", "status": "completed"}'
    answer = server.post(OPENMETER, data, key, "application/json", ce_subject="Zo%C3%AB%201", **headers)
    assert answer.status == 204
    (value,) = values(server, sent["id"])
    assert data in value
    assert json.loads(value) == {**sent, "datacontenttype": "application/json", "data": json.loads(data)}


def test_data_of_an_event_in_binary_mode_cannot_add_attributes(server: Server, key: str) -> None:
    headers = {f"ce-{name}": value for name, value in event().items() if isinstance(value, str)}
    answer = server.post(OPENMETER, b'{"model":"m"}, "senttime": "x"', key, "application/json", **headers)
    assert answer.status == 400


def test_weirs_route_accepts_valid_events_and_reports_the_violations_of_others(server: Server, key: str) -> None:
    good, bad = event(), event(data={"request_id": "r", "model": "m", "status": "completed", "input_tokens": -1})
    answer = server.post(OWN, encoded([bad, good]), key)
    assert answer.status == 200
    topic, partition, offset = answer.json["position"].split("/")
    assert (topic, answer.json["accepted"]) == ("events", 1)
    assert int(partition) >= 0
    assert int(offset) >= 0
    (rejected,) = answer.json["rejected"]
    assert rejected == {
        "index": 0,
        "id": bad["id"],
        "reason": "invalid_tokens",
        "path": "/data/input_tokens",
        "rule": "at least 0; it is -1",
    }
    assert (values(server, bad["id"]), len(values(server, good["id"]))) == ([], 1)


@pytest.mark.parametrize("path", [OPENMETER, V3])
def test_openmeters_routes_take_all_or_none(server: Server, key: str, path: str) -> None:
    good, bad = event(), event(data={"request_id": "r", "model": "m", "status": "completed", "input_tokens": -1})
    answer = server.post(path, encoded([good, bad]), key)
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json["invalid_parameters"] == [
        {
            "field": "/1/data/input_tokens",
            "rule": "invalid_tokens",
            "source": "body",
            "reason": "at least 0; it is -1",
        }
    ]
    assert values(server, good["id"]) == []


def test_an_event_without_a_time_gets_its_receipt_and_is_marked(server: Server, key: str) -> None:
    sent = event(time=None)
    for _ in range(2):
        assert server.post(OPENMETER, encoded(sent), key).status == 204
    first, second = (json.loads(value) for value in values(server, sent["id"]))
    assert first.pop("timesource") == second.pop("timesource") == "receipt"
    assert first.pop("time") < second.pop("time")
    assert first == second == sent


def test_a_narrower_contract_holds_once_ingestion_has_it(server: Server, key: str) -> None:
    sent = encoded(event(type="gpu", data={}))
    assert server.post(OPENMETER, sent, key).status == 204
    fields = {"data": {"type": "object", "required": ["seconds"], "properties": {"seconds": SECONDS}}}
    narrow = {"$id": "gpu", "x-weir-family": "heartbeat", "type": "object", "required": ["data"], "properties": fields}
    start_ingestion(server.database, contracts=[narrow])
    wait_until(lambda: server.post(OPENMETER, sent, key).status == 400, "the narrower contract", 60, every_seconds=0.2)


def refused(answer: Answer, status: int, *words: str) -> None:
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json"), answer
    problem = answer.json
    assert problem["status"] == status
    assert all(word in problem["detail"] for word in words), problem["detail"]


def test_unacceptable_requests_are_refused_with_advice(server: Server, key: str) -> None:
    before = server.records()
    refused(server.post(OWN, b"", key), 400, "no event")
    refused(server.post(OWN, b"[]", key), 400, "no event")
    refused(server.post(OWN, b'[{"a":1}', key), 400, "array")
    refused(server.post(OWN, b"[" * 100_000, key), 400, "nested too deeply")
    refused(server.post(OWN, b"\xff", key, "application/cloudevents-batch+json"), 400, "UTF-8")
    refused(server.post(OWN, b"{}", key, "text/plain"), 415, "text/plain", "application/cloudevents+json")
    refused(server.post(OWN, b"{}", key, Content_Encoding="br"), 415, "gzip")
    refused(server.post(OWN, b"{}", key, Content_Encoding="gzip"), 400, "gzip")
    cut = gzip.compress(encoded(event()))[:-9]
    refused(server.post(OWN, cut, key, Content_Encoding="gzip"), 400, "gzip")
    two = gzip.compress(b"[]") + gzip.compress(encoded(event()))
    refused(server.post(OWN, two, key, Content_Encoding="gzip"), 400, "gzip")
    refused(server.request("GET", OWN, None, {}), 405)
    refused(server.post("/v1/nothing", b"", key), 404)
    assert server.records() == before


def test_limits_hold_at_their_edge(server: Server, key: str) -> None:
    mark = uuid4().hex
    thousand = [event(id=f"{mark}-{n}") for n in range(1_000)]
    assert server.post(OWN, encoded(thousand), key).json["accepted"] == 1_000
    refused(server.post(OWN, encoded([*thousand, event()]), key), 413, "1000", "1001")
    room = (252 << 10) - len(encoded(event(pad="")))
    answer = server.post(OWN, encoded(event(pad="x" * room)), key)
    assert (answer.status, answer.json.get("accepted")) == (200, 1), answer.body
    refused(server.post(OWN, encoded(event(pad="x" * (room + 1))), key), 413, "258048", "258049")
    refused(server.post(OWN, b" " * ((4 << 20) + 1), key), 413, "4194304")
    bomb = gzip.compress(b" " * (256 << 20))
    refused(server.post(OWN, bomb, key, Content_Encoding="gzip"), 413, "4194304")


@pytest.mark.parametrize("key", [None, "", "weir_", f"weir_{'0' * 12}_{'0' * 64}", "Zoë"])
def test_a_valid_key_is_required(server: Server, key: str | None) -> None:
    answer = server.post(OWN, b"{}", key)
    refused(answer, 401, "weir keys create")
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_key_does_only_what_it_is_for(server: Server) -> None:
    reading = usable(server, scopes=[Scope.READ])
    refused(server.post(OWN, encoded(event()), reading), 403, "ingest")
    narrow = usable(server, accounts=["acme"], sources=["gateway/*"])
    assert server.post(OPENMETER, encoded(event(subject="acme", source="gateway/1")), narrow).status == 204
    others, elsewhere = event(subject="other", source="gateway/1"), event(subject="acme", source="gate")
    refused(server.post(OPENMETER, encoded(others), narrow), 403, "subject")
    refused(server.post(OPENMETER, encoded(elsewhere), narrow), 403, "source")
    assert values(server, others["id"]) + values(server, elsewhere["id"]) == []


def test_no_client_may_send_as_weir_itself(server: Server, key: str) -> None:
    beat = event(type="source.heartbeat.v1", source="weir", data={})
    refused(server.post(OWN, encoded(beat), key), 403, "source", "weir")
    assert values(server, beat["id"]) == []


def test_a_revoked_key_is_refused_and_a_rotated_one_holds_until_its_overlap_ends(server: Server) -> None:
    key = usable(server)
    key_id = key.split("_")[1]
    made = key_store.rotate(server.database, key_id, "test", timedelta(hours=1))
    wait_until(lambda: server.post(OWN, b"", made.key).status != 401, "the new key", 60, every_seconds=0.1)
    assert server.post(OWN, encoded(event()), key).status == 200
    key_store.revoke(server.database, key_id, "test")
    wait_until(lambda: server.post(OWN, b"", key).status == 401, "the revocation", 60, every_seconds=0.1)
    assert server.post(OWN, encoded(event()), made.key).status == 200
