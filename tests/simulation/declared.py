"""What a history may declare: meters that come and go, under the name by which a step says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.corpus.contracts import GPU

Meters = Mapping[str, Mapping[str, Any]]


def _tokens(kind: str, **said: Any) -> Meters:
    return {f"{kind}_tokens": {"unit": "token", "sum": f"{kind}_tokens", **said}}


SHIPPED: Meters = {
    "requests": {"unit": "request", "count": "outcomes"},
    **_tokens("input"),
    **_tokens("output"),
    **_tokens("cached", within="input_tokens"),
}
REASONING = _tokens("reasoning", within="output_tokens")
GPU_SECONDS: Meters = {"gpu_seconds": {"unit": "second", "sum": "gpu_seconds", "grace_seconds": 60}}

DECLARED: Mapping[str, Meters] = {
    "shipped": SHIPPED,
    "reasoning": {**SHIPPED, **REASONING},
    "reasoning expected": {**SHIPPED, **_tokens("reasoning", expected=True)},
    "reasoning dropped": {**SHIPPED, **_tokens("reasoning", late_policy="drop")},
    "reasoning held": {**SHIPPED, **_tokens("reasoning", late_policy="hold", hold={"seconds": 600})},
    "no requests": {name: meter for name, meter in SHIPPED.items() if name != "requests"},
    "reasoning alone": {**REASONING, **_tokens("output")},
    "input twice": {**SHIPPED, "prompts": {"unit": "token", "sum": "input_tokens", "expected": True}},
    "requests twice": {**SHIPPED, "calls": {"unit": "call", "count": "outcomes", "late_policy": "drop"}},
    "seconds": {**SHIPPED, **GPU_SECONDS},
    "graces": {
        **_tokens("input", grace_seconds=1_800),
        **_tokens("reasoning", late_policy="drop", grace_seconds=0),
        "calls": {"unit": "call", "count": "outcomes"},
    },
    "answered": {
        **SHIPPED,
        "requests": {**SHIPPED["requests"], "where": {"status": ["completed", "cancelled"]}},
        "calls": {"unit": "call", "count": "outcomes", "where": {"user_id": "u0", "region": "eu"}},
    },
    "in part": {
        **SHIPPED,
        **_tokens("cached", within="input_tokens", where={"cached": True}),
        **_tokens("output", where={"region": ["eu", "us"], "status": "completed"}),
        "prompts": {"unit": "token", "sum": "input_tokens", "expected": True, "where": {"cached": [False]}},
    },
    "seconds alone": {"gpu_seconds": {**GPU_SECONDS["gpu_seconds"], "expected": True}},
}
CONDITIONAL = ("answered", "in part")
"""Meters that look at some of the outcomes."""
USERS: Meters = {
    "users_of_a_day": {"unit": "user", "unique": "user_id", "period": "day", "grace_seconds": 60},
    "users_of_a_month": {"unit": "user", "unique": "user_id", "period": "month"},
}
"""Meters of a day and of a month."""
COUNTED_ONCE: Mapping[str, Meters] = {
    "answers of ten minutes": {
        **SHIPPED,
        "answers": {"unit": "answer", "count": "outcomes", "once_per": {"column": "region", "within": "PT10M"}},
        **USERS,
    },
    "answers of a day, and their tokens": {
        **SHIPPED,
        "answers": {"unit": "answer", "count": "outcomes", "once_per": {"column": "model", "within": "P1D"}},
        "answered": {"unit": "token", "sum": "output_tokens", "once_per": {"column": "model", "within": "P1D"}},
        **USERS,
    },
}
"""Meters that count each content once, beside users of days and months; no policy of billing has their names."""
ALL_METERS = tuple(dict.fromkeys(name for meters in DECLARED.values() for name in meters))
CONTRACTS = (GPU,)
"""By which ingestion reads seconds of completions, from the beginning."""
HISTORY = "history"
"""The source whose past is taken."""
BACKFILL: Mapping[str, Any] = {"sources": [HISTORY], "accept_past_seconds": 1_000 * 86_400}
OTHER_TYPE = "some.other.v1"
"""Of events that have no contract at first, and say what usage events say."""
OTHER = {"$id": OTHER_TYPE, "allOf": [{"$ref": "weir:ai.inference.usage.v1"}]}
REVERSAL_TYPE = "ai.inference.reversal.v1"
DESK = "desk"
"""The source whose reversals count."""
