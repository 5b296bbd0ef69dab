"""Events that are posted over HTTP are metered as those that are produced, each once, however often they are sent."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import psycopg
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deployment.stack import Stack
from tests.e2e.metering import drain, weir
from tests.waiting import wait_until


def post(stack: Stack, key: str, body: Any, content_type: str = "application/cloudevents+json") -> tuple[int, bytes]:
    """Status and body of a `POST /api/v1/events`, as LiteLLM's callback makes it."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": content_type}
    request = Request(f"{stack.api_url}/api/v1/events", json.dumps(body).encode(), headers, method="POST")
    with urlopen(request, timeout=30) as answer:
        return answer.status, answer.read()


def is_known(stack: Stack, key: str) -> bool:
    try:
        post(stack, key, [])
    except OSError as error:
        return "401" not in str(error)
    return True


def spans_of_a_call(account: str) -> tuple[ReadableSpan, ...]:
    """An agent that calls a model once, as OpenTelemetry's SDK traces it."""
    finished = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "agents", "weir.account": account}))
    provider.add_span_processor(SimpleSpanProcessor(finished))
    tracer = provider.get_tracer("test")
    usage = {"gen_ai.usage.input_tokens": 1200, "gen_ai.usage.output_tokens": 350}
    cached = {"gen_ai.usage.cache_read.input_tokens": 200}
    call: dict[str, str | int] = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o", **usage, **cached}
    with tracer.start_as_current_span("agent", attributes={"gen_ai.operation.name": "invoke_agent", **usage}):
        tracer.start_span("chat gpt-4o", attributes=call).end()
    return finished.get_finished_spans()


def test_what_litellm_a_gateway_without_a_clock_and_opentelemetry_post_is_metered_once(stack: Stack) -> None:
    mark = uuid4().hex
    sources = [word for source in ("litellm-proxy", "gw", "agents") for word in ("--source", source)]
    limits = ("--requests-per-second", "1000", "--events-per-minute", "0")
    made = weir(stack, "keys", "create", "--scope", "ingest", "--account", mark, *sources, *limits, "--format", "json")
    assert made.returncode == 0, made.stderr
    key = json.loads(made.stdout)
    wait_until(lambda: is_known(stack, key["key"]), "the key being known", 60, every_seconds=0.2)
    litellm = {
        "specversion": "1.0",
        "type": "litellm_tokens",
        "source": "litellm-proxy",
        "id": mark,
        "subject": mark,
        "time": datetime.now(UTC).isoformat(),
        "data": {"model": "gpt-4o", "prompt_tokens": 7, "completion_tokens": 2, "cost": 0.0},
    }
    timeless = {
        "specversion": "1.0",
        "type": "ai.inference.usage.v1",
        "source": "gw",
        "id": mark,
        "subject": mark,
        "data": {"request_id": f"{mark}-2", "model": "gpt-4o", "status": "completed", "input_tokens": 11},
    }
    headers = {"Authorization": f"Bearer {key['key']}"}
    exporter, spans = OTLPSpanExporter(f"{stack.api_url}/v1/traces", headers=headers), spans_of_a_call(mark)
    for _ in range(2):
        assert exporter.export(spans) is SpanExportResult.SUCCESS
        assert post(stack, key["key"], litellm) == (204, b"")
        assert post(stack, key["key"], [timeless], "application/cloudevents-batch+json") == (204, b"")
    drain(stack)
    listed = weir(
        stack, "usage", "--window", "P1M", "--group-by", "account,meter", "--account", mark, "--format", "json"
    )
    quantities = {row["meter"]: float(row["quantity"]) for row in json.loads(listed.stdout)}
    assert quantities == {"requests": 3, "input_tokens": 1218, "output_tokens": 352, "cached_tokens": 200}
    with psycopg.connect(stack.postgres_url) as database:
        [(kept,)] = database.execute("SELECT progress -> 'retention' FROM jobs WHERE job = 'ingestion'").fetchall()
    listed = weir(stack, "topics", "list", "--format", "json")
    [events] = (row for row in json.loads(listed.stdout) if row["topic"] == "events")
    hours = kept["seconds"] and kept["seconds"] / 3_600
    assert (hours, kept["headroom"] > 0.9) == (events["retention_hours"], True), "by which the API refuses events"
    # What is sent again is a duplicate, also where each copy was stamped with another time.
    conflicts = weir(stack, "conflicts", "--format", "json")
    assert mark not in conflicts.stdout
    listed = weir(stack, "keys", "list", "--format", "json")
    (row,) = (row for row in json.loads(listed.stdout) if row["id"] == key["id"])
    assert (row["state"], row["accounts"], key["key"] in listed.stdout) == ("valid", mark, False)
    assert (key["requests_per_second"], row["requests_per_second"], row["events_per_minute"]) == (1000, 1000, 0)
    limited = weir(stack, "keys", "limit", key["id"], "--events-per-minute", "60")
    assert "requests per second: the API's default; events per minute: 60" in limited.stdout, limited.stderr
    rotated = json.loads(weir(stack, "keys", "rotate", key["id"], "--format", "json").stdout)
    assert (rotated["requests_per_second"], rotated["events_per_minute"]) == (None, 60)
