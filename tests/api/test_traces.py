"""Spans that OpenTelemetry's own exporter posts become events of usage, and what is not taken is named."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from api.otlp_json import JSON
from api.otlp_protobuf import PROTOBUF
from api.span_usage import MAX_USAGE_SPANS
from tests.api.serving import Answer, Server
from tests.api.test_events_in import usable
from tests.rules.test_otlp import CALL, Attribute, as_json, request, span

TRACES = "/v1/traces"


@pytest.fixture(scope="module")
def key(server: Server) -> str:
    return usable(server, sources=["gateway*"])


def events(server: Server, account: str) -> list[dict[str, Any]]:
    return [json.loads(value) for name, value, _ in server.records() if name == account.encode()]


def account() -> str:
    return f"acme-{uuid4().hex}"


def partial(answer: Answer) -> tuple[int, str]:
    assert (answer.status, answer.headers["content-type"]) == (200, PROTOBUF)
    found = ExportTraceServiceResponse.FromString(answer.body).partial_success
    return found.rejected_spans, found.error_message


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_what_the_sdk_exports_is_a_record_and_a_span_that_it_exports_again_the_same_one(
    server: Server, key: str, compression: Compression
) -> None:
    name = account()
    address = f"http://127.0.0.1:{server.port}{TRACES}"
    exporter = OTLPSpanExporter(address, headers={"Authorization": f"Bearer {key}"}, compression=compression)
    finished = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "gateway-eu", "weir.account": name}))
    provider.add_span_processor(SimpleSpanProcessor(finished))
    tracer = provider.get_tracer("test")
    call = {each: value for each, value in CALL.items() if each not in ("weir.account", "gen_ai.response.id")}
    with tracer.start_as_current_span("agent", attributes={"gen_ai.operation.name": "invoke_agent"}):
        for status in (StatusCode.OK, StatusCode.ERROR):
            with tracer.start_as_current_span("chat gpt-4o", attributes=call) as made:
                made.set_status(status)
    spans = finished.get_finished_spans()
    assert [exporter.export(spans), exporter.export(spans)] == [SpanExportResult.SUCCESS] * 2
    values = [value for subject, value, _ in server.records() if subject == name.encode()]
    assert len(values) == 2 * len(set(values)) == 4
    found = [json.loads(value) for value in set(values)]
    assert {(event["id"], event["data"]["status"], event["source"]) for event in found} == {
        (f"{trace:032x}:{span_id:016x}", status, "gateway-eu")
        for (trace, span_id), status in zip(
            [(each.context.trace_id, each.context.span_id) for each in spans[:2]], ["completed", "error"], strict=True
        )
    }


def test_json_is_answered_in_json(server: Server, key: str) -> None:
    name = account()
    answer = server.post(TRACES, as_json(request(span(CALL | {"weir.account": name}))), key, JSON)
    assert (answer.status, answer.headers["content-type"], answer.json) == (200, JSON, {})
    assert [event["data"]["input_tokens"] for event in events(server, name)] == [1200]


def posted(server: Server, key: str | None, *calls: dict[str, Attribute], **more: Any) -> Answer:
    made = [span(call, span_id=(number + 1).to_bytes(8, "big")) for number, call in enumerate(calls)]
    return server.post(TRACES, request(*made, **more).SerializeToString(), key, PROTOBUF)


def test_valid_spans_are_accepted_and_others_listed_with_their_errors(server: Server, key: str) -> None:
    name = account()
    good = CALL | {"weir.account": name}
    no_account = {each: value for each, value in CALL.items() if each != "weir.account"}
    answer = posted(server, key, good, good | {"gen_ai.usage.output_tokens": -1}, no_account, {"http.route": "/"})
    count, message = partial(answer)
    assert count == 2
    assert ":0000000000000002: invalid_tokens at /data/output_tokens: at least 0; it is -1; span " in message
    assert message.endswith(
        ":0000000000000003: neither it nor its resource has the attribute weir.account, which names the account"
    )
    assert [event["id"][-1] for event in events(server, name)] == ["1"]


def test_only_the_services_and_accounts_that_a_key_names_are_billed(server: Server, key: str) -> None:
    name = account()
    call = CALL | {"weir.account": name}
    for resource in ({"service.name": "sdk"}, {}):
        count, message = partial(posted(server, key, call, resource=resource))
        assert (count, "source" in message) == (1, True)
    of_other = usable(server, sources=["gateway"], accounts=["globex"])
    count, message = partial(posted(server, of_other, call))
    assert (count, "may not send for its subject" in message) == (1, True)
    assert events(server, name) == []


def test_spans_with_tokens_that_are_no_known_call_are_a_warning(server: Server, key: str) -> None:
    name = account()
    call: dict[str, Attribute] = CALL | {"weir.account": name}
    count, message = partial(posted(server, key, call, call | {"gen_ai.operation.name": "rerank"}))
    assert count == 0
    assert message.startswith("1 spans report tokens and are not billed: their gen_ai.operation.name ('rerank') is no")
    assert len(events(server, name)) == 1


def test_a_key_that_names_no_source_may_not_post_spans(server: Server) -> None:
    answer = posted(server, usable(server), CALL)
    refused = Status.FromString(answer.body)
    assert (answer.status, refused.code) == (403, 7)
    assert "`weir keys create --scope ingest --source NAME`" in refused.message


def test_without_a_key_nothing_is_taken(server: Server) -> None:
    answer = posted(server, None, CALL)
    assert (answer.status, Status.FromString(answer.body).code) == (401, 16)
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("body", [b"\xff", b"{"], ids=["protobuf", "json"])
def test_an_invalid_request_of_spans_is_not_retryable(server: Server, key: str, body: bytes) -> None:
    media_type = PROTOBUF if body == b"\xff" else JSON
    assert server.post(TRACES, body, key, media_type).status == 400
    assert server.post(TRACES, body, key, "text/plain").status == 415


def test_as_many_spans_as_a_collector_sends_are_taken_and_not_one_above_the_limit(server: Server, key: str) -> None:
    name = account()
    usual: dict[str, Attribute] = {"weir.account": name, **{f"attribute_{number}": "x" * 100 for number in range(8)}}
    short = usual | {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    most = [short] * MAX_USAGE_SPANS
    assert partial(posted(server, key, *most)) == (0, "")
    assert len(events(server, name)) == MAX_USAGE_SPANS
    answer = posted(server, key, *most, short)
    assert (answer.status, len(events(server, name))) == (413, MAX_USAGE_SPANS)


@pytest.mark.parametrize("path", ["/v1/metrics", "/v1/logs"])
def test_counters_are_refused_with_the_reason(server: Server, key: str, path: str) -> None:
    answer = server.post(path, b"", key, PROTOBUF)
    assert (answer.status, "a counter has no identity" in answer.json["detail"]) == (400, True)
