"""Responses of providers, from what the client reads of them to the bill: what the provider's list price charges."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from metering.contracts.shipped import shipped
from metering.price_models import PricedModel
from tests.corpus import RECEIVED_AT
from tests.pipelines.as_billed import Stack, billed, listed
from tests.pipelines.test_public_cases_billed import OF_THE_MONTH, TERMS, USAGE_TYPE
from tests.rules.test_client_gateways import BATCH, COHERE
from tests.rules.test_client_servers import EMBEDDED_IMAGE, ESTIMATED, FAST, NAMELESS
from tests.rules.test_client_tokens import REALTIME, VERTEX
from tests.rules.test_client_usage import CHAT, MESSAGE
from tests.rules.test_otlp import CALL, read, request, span
from weir_client import anthropic_usage, gemini_usage, openai_usage
from weir_client.encoding import encoded

INCLUDES = shipped()[USAGE_TYPE]["x-weir-includes"] | {"cache_write_tokens": ["cache_write_1h_tokens"]}
COUNTS = ("cache_write_1h_tokens", "web_search_requests")
CONTRACT: dict[str, Any] = {
    "$id": USAGE_TYPE,
    "allOf": [{"$ref": f"weir:{USAGE_TYPE}"}],
    "x-weir-includes": INCLUDES,
    "properties": {
        "data": {
            "properties": {
                **{name: {"type": ["string", "null"], "x-weir-column": name} for name in ("service_tier", "speed")},
                **{name: {"type": ["integer", "null"], "minimum": 0, "x-weir-column": name} for name in COUNTS},
            }
        }
    },
}
"""As the guide says: a column for each field that the shipped contracts do not read."""
WHOLES = {part: whole for whole, parts in INCLUDES.items() for part in parts}
METERS: dict[str, Any] = {
    "web_search_requests": {"unit": "search", "sum": "web_search_requests"},
    **{
        name: {"unit": "token", "sum": name, **({"within": WHOLES[name]} if name in WHOLES else {})}
        for name in ("input_tokens", "output_tokens", *WHOLES)
    },
}
REALTIME_PRICES = {
    "input_tokens": "4",
    "cached_tokens": "0.4",
    "audio_input_tokens": "32",
    "image_input_tokens": "5",
    "output_tokens": "16",
    "audio_output_tokens": "64",
}
CLAUDE_PRICES = {
    "input_tokens": "3",
    "cached_tokens": "0.3",
    "cache_write_tokens": "3.75",
    "cache_write_1h_tokens": "6",
    "output_tokens": "15",
    "web_search_requests": "10000",
}
FLEX = PricedModel.of("gpt-4o", {"service_tier": "flex"}).text
PRICES: Mapping[str, Mapping[str, str]] = {
    "gpt-realtime": REALTIME_PRICES,
    "claude-sonnet-4-5": CLAUDE_PRICES,
    "gpt-4o": {"input_tokens": "2.5", "cached_tokens": "1.25", "output_tokens": "10"},
    FLEX: {"input_tokens": "1.25", "cached_tokens": "0.625", "output_tokens": "5"},
    "gemini-2.5-pro": {"input_tokens": "1.25", "cached_tokens": "0.125", "output_tokens": "10"},
    "claude-haiku-4-5": {
        "input_tokens": "1",
        "cached_tokens": "0.1",
        "cache_write_tokens": "1.25",
        "output_tokens": "5",
    },
    "sonar": {"input_tokens": "1", "output_tokens": "1"},
    "gpt-5.6-luna": {"input_tokens": "1", "cached_tokens": "0.1", "output_tokens": "6"},
    "command-a": {"input_tokens": "2.5", "output_tokens": "10"},
}
"""Of a million, in dollars."""
PORTKEY: dict[str, Any] = {
    "id": "msg_y",
    "object": "chat.completion",
    "model": "claude-haiku-4-5",
    "choices": [{"index": 0, "finish_reason": "end_turn", "message": {}}],
    "usage": {
        "prompt_tokens": 1_000,
        "completion_tokens": 50,
        "total_tokens": 6_250,
        "cache_read_input_tokens": 5_000,
        "cache_creation_input_tokens": 200,
    },
}
"""It counts what the cache gave and took beside the prompt, and in the total."""
PERPLEXITY = [
    {
        "id": "ab7cac59-7b92",
        "object": "chat.completion",
        "model": "sonar",
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": {}, "delta": {"role": "assistant"}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens},
    }
    for tokens, finish_reason in ((1, None), (2, None), (3, "stop"))
]
"""Each part of a stream has the usage so far."""


def test_what_providers_count_comes_to_what_they_charge(database: str) -> None:
    written = {"cache_creation": {"ephemeral_5m_input_tokens": 88, "ephemeral_1h_input_tokens": 100}}
    searched = {**MESSAGE["usage"], **written, "server_tool_use": {"web_search_requests": 2}}
    call: dict[str, Any] = {"account": "acme", "source": "backend", "time": RECEIVED_AT - timedelta(seconds=20)}
    events = encoded(
        [
            openai_usage(REALTIME, model="gpt-realtime", **call),
            anthropic_usage({**MESSAGE, "id": "msg_x", "usage": searched}, **call),
            openai_usage({**CHAT, "service_tier": "flex"}, **call),
            openai_usage({**CHAT, "id": "chatcmpl-x", "service_tier": "default"}, **call),
            gemini_usage(VERTEX, **call),
            openai_usage(PORTKEY, **call),
            *(openai_usage(part, **call) for part in PERPLEXITY),
            openai_usage(BATCH, **call),
            openai_usage(COHERE, model="command-a", **call),
        ]
    )
    stack = Stack(METERS, contracts=(CONTRACT,), price_attributes=("service_tier",))
    unit_prices = {
        (model, meter): str(Decimal(price) / 1_000_000)
        for model, of_model in PRICES.items()
        for meter, price in of_model.items()
    }
    billed(database, stack, [(event, RECEIVED_AT) for event in events], **TERMS, unit_prices=unit_prices)
    charged: dict[str, Decimal] = {}
    rows: list[dict[str, Any]] = [dict(row) for row in listed(database, OF_THE_MONTH)]
    for row in rows:
        assert row["unpriced_quantity"] == 0 or row["meter"] in ("web_search_requests", *WHOLES), row
        charged[row["model"]] = charged.get(row["model"], Decimal(0)) + (row["amount"] or 0) * 1_000_000
    assert charged == {
        "gpt-realtime": 136 * 4 + 188 * 32 + 36 * 5 + 640 * Decimal("0.4") + 60 * 16 + 240 * 64,
        "claude-sonnet-4-5": 21 * 3 + 300 + 88 * Decimal("3.75") + 100 * 6 + 393 * 15 + 2 * 10_000,
        "gpt-4o": (200 * Decimal("2.5") + 1_000 * Decimal("1.25") + 350 * 10) * Decimal("1.5"),
        "gemini-2.5-pro": 430 * Decimal("1.25") + 600 * Decimal("0.125") + 250 * 10,
        "claude-haiku-4-5": 1_000 + 5_000 * Decimal("0.1") + 200 * Decimal("1.25") + 50 * 5,
        "sonar": 10 + 3,
        "gpt-5.6-luna": 298_976 + 1_024 * Decimal("0.1") + 93 * 6,
        "command-a": 5 * Decimal("2.5") + 418 * 10,
    }


SERVED: Mapping[str, Mapping[str, str]] = {
    "embed-v4.0": {"input_tokens": "0.12", "image_input_tokens": "0.47", "output_tokens": "0"},
    "qwen.qwen3-32b-v1:0": {"input_tokens": "0.15", "output_tokens": "0.6"},
    "claude-opus-4-6": {"input_tokens": "5", "output_tokens": "25"},
    PricedModel.of("claude-opus-4-6", {"speed": "fast"}).text: {"input_tokens": "30", "output_tokens": "150"},
    "llama3.2:1b": {"input_tokens": "1", "output_tokens": "2"},
    "gpt-4o-2024-08-06": {"input_tokens": "2.5", "output_tokens": "10"},
    PricedModel.of("gpt-4o-2024-08-06", {"service_tier": "flex"}).text: {"input_tokens": "1.25", "output_tokens": "5"},
}


def test_what_servers_and_spans_report_comes_to_what_is_charged_for_it(database: str) -> None:
    """Images of Cohere were free, fast mode and flex at the standard price, and the other calls on no bill."""
    call: dict[str, Any] = {"account": "acme", "source": "backend", "time": RECEIVED_AT - timedelta(seconds=20)}
    ended = int((RECEIVED_AT - timedelta(seconds=20)).timestamp()) * 10**9
    flex = span(CALL | {"openai.response.service_tier": "flex"}, end_time_unix_nano=ended)
    events = encoded(
        [
            openai_usage(EMBEDDED_IMAGE, model="embed-v4.0", **call),
            openai_usage(ESTIMATED, **call),
            openai_usage(FAST, **call),
            *(openai_usage({**NAMELESS, "created": NAMELESS["created"] + second}, **call) for second in (0, 1, 1)),
        ]
    )
    events += [reported.document for reported in read(request(flex))]
    stack = Stack(METERS, contracts=(CONTRACT,), price_attributes=("service_tier", "speed"))
    unit_prices = {
        (model, meter): str(Decimal(price) / 1_000_000)
        for model, of_model in SERVED.items()
        for meter, price in of_model.items()
    }
    billed(database, stack, [(event, RECEIVED_AT) for event in events], **TERMS, unit_prices=unit_prices)
    charged: dict[str, Decimal] = {}
    rows: list[dict[str, Any]] = [dict(row) for row in listed(database, OF_THE_MONTH)]
    for row in rows:
        charged[row["model"]] = charged.get(row["model"], Decimal(0)) + (row["amount"] or 0) * 1_000_000
    assert charged == {
        "embed-v4.0": 2_716 * Decimal("0.47"),
        "qwen.qwen3-32b-v1:0": 40 * Decimal("0.15") + 500 * Decimal("0.6"),
        "claude-opus-4-6": 1_000 * 30 + 50 * 150,
        "llama3.2:1b": 2 * (10 + 5 * 2),
        "gpt-4o-2024-08-06": 1_200 * Decimal("1.25") + 350 * 5,
    }
