"""An event with several calls bills what its calls bill when they are sent one by one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from metering.instants import rfc3339
from tests.corpus import RECEIVED_AT
from tests.pipelines.as_billed import Stack, decided

OF_CALLS = {"allOf": [{"$ref": "weir:ai.inference.usage.v1"}]}
STACK = Stack(
    contracts=({"$id": "trace", "x-weir-unnest": "/data/calls", **OF_CALLS}, {"$id": "call", **OF_CALLS}),
    dimensions=("operation",),
)
PRICES = {
    ("*", "requests"): "0.5",
    ("small", "input_tokens"): "0.000003",
    ("small", "cached_tokens"): "0.0000003",
    ("large", "input_tokens"): "0.00001",
    ("large", "output_tokens"): "0.00003",
}
SAID = ("request_id", "model", "status", "outcome", "event_time", "meters", "dimensions", "sign", "cause", "day")

calls = st.fixed_dictionaries(
    {"input_tokens": st.integers(20, 10**6), "model": st.sampled_from(["small", "large", "other"])},
    optional={
        "status": st.sampled_from(["completed", "error", "cancelled"]),
        "cached_tokens": st.integers(0, 20) | st.none(),
        "output_tokens": st.integers(0, 10**6),
        "operation": st.sampled_from(["plan", "read"]),
        "request_id": st.sampled_from(["own-1", "own-2"]),
        "usage_source": st.sampled_from(["provider", "estimated", "partial"]),
    },
)
around = st.fixed_dictionaries({"status": st.just("completed")}, optional={"operation": st.just("run")})
traces = st.lists(st.tuples(around, st.lists(calls, min_size=1, max_size=5)), min_size=1, max_size=3)


def event(kind: str, name: str, **data: Any) -> tuple[bytes, datetime]:
    envelope = {"specversion": "1.0", "type": kind, "source": "agent", "id": name, "subject": "acme"}
    return json.dumps({**envelope, "time": rfc3339(RECEIVED_AT), "data": data}).encode(), RECEIVED_AT


def usage(events: list[tuple[bytes, datetime]]) -> pl.DataFrame:
    account = {"account": "acme", "plan": "api", "currency": "USD", "timezone": "UTC"}
    since = datetime(2020, 1, 1, tzinfo=UTC)
    rows, found = decided(STACK, events, account=account, unit_prices=PRICES, since=since)
    assert rows["reason"].null_count() == len(rows)
    return pl.DataFrame(found).select(SAID)


@settings(max_examples=40)
@given(traces)
def test_a_trace_bills_what_its_calls_bill(universe: list[tuple[dict[str, Any], list[dict[str, Any]]]]) -> None:
    whole, single = [], []
    for number, (data, each) in enumerate(universe):
        # Of reports that are equally good the identity decides, which differs: so the ids of calls are each once.
        own = [
            {**call, "request_id": f"{name}-{number}-{at}"} if (name := call.get("request_id")) else call
            for at, call in enumerate(each)
        ]
        whole.append(event("trace", f"t-{number}", request_id=f"run-{number}", calls=own, **data))
        for at, call in enumerate(own, start=1):
            single.append(event("call", f"c-{number}-{at}", **{"request_id": f"run-{number}/{at}", **data, **call}))
    expected = usage(single).sort("request_id")
    assert usage(whole).sort("request_id").equals(expected)
    assert len(expected) == sum(len(each) for _, each in universe)
