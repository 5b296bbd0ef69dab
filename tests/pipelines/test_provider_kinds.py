"""What OpenAI, Anthropic, Gemini, Bedrock, gateways and routers report of a call, and its fair price, worked out
by hand: that is billed after an audit, whatever was billed before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from metering.contracts.shipped import shipped
from metering.price_models import PricedModel
from tests.pipelines.as_billed import Stack
from tests.pipelines.hand_made import DAY, HOUR, MINUTE
from tests.pipelines.sent import COMPLETION, MILLION, REQUEST, REVERSAL, USAGE, Prices, Sent
from tests.pipelines.test_audit_restated import audited
from tests.pipelines.test_reported_bills import FREE, GPT, SECOND, called, live_and_audited

Data = Mapping[str, Any]
GUIDE_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "meters.md"


@dataclass(frozen=True)
class Kind:
    """Prices of a million, what is sent and when (type, data, source), and what a million such calls cost in the end.

    `live`: what it costs before the audit, where that is something else.
    """

    prices: Prices
    sent: Sequence[tuple[timedelta, str, Data, str]]
    costs: str
    live: str | None = None
    stack: Stack = field(default_factory=Stack)
    refused: str | None = None
    """How the rejection of each event begins; None: all are accepted."""


def usage(at: timedelta = timedelta(), source: str = "gateway/1", **said: Any) -> tuple[timedelta, str, Data, str]:
    return at, USAGE, called(**said), source


def back(at: timedelta, **said: Any) -> tuple[timedelta, str, Data, str]:
    """A reversal of the request."""
    return at, REVERSAL, {"request_id": "r1", "reason": "a dispute", **said}, "desk"


def column(*names: str, includes: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """The shipped contract of usage with counts of one's own, and what its convention says besides."""
    count = {"type": ["integer", "null"], "minimum": 0}
    own = {name: {**count, "x-weir-column": name} for name in names}
    whole = dict(shipped()[USAGE]["x-weir-includes"]) | dict(includes or {})
    extends = {"allOf": [{"$ref": f"weir:{USAGE}"}], "properties": {"data": {"properties": own}}}
    return {"$id": USAGE, **extends, "x-weir-includes": whole}


def tokens(name: str, within: str | None = None) -> dict[str, Any]:
    return {name: {"unit": "token", "sum": name, **({"within": within} if within else {})}}


def of(model: str, **conditions: str) -> str:
    return PricedModel.of(model, conditions).text


def prices(model: str, **of_million: str) -> dict[tuple[str, str], str]:
    return {(model, meter): price for meter, price in of_million.items()}


def conventions_of_the_guide() -> list[dict[str, Any]]:
    """Those that it has for Anthropic and Gemini."""
    (block,) = (text for text in GUIDE_PAGE.read_text().split("```") if "    conventions:\n" in text)
    listed: list[dict[str, Any]] = yaml.safe_load(block.removeprefix("yaml"))["jobs"]["ingestion"]["conventions"]
    return listed


METERS = {
    "requests": {"unit": "request", "count": "outcomes", "where": {"status": ["completed", "cancelled"]}},
    **tokens("input_tokens"),
    **tokens("output_tokens"),
    **tokens("cached_tokens", "input_tokens"),
    **tokens("cache_write_tokens", "input_tokens"),
    **tokens("audio_input_tokens", "input_tokens"),
}
HOURLY = Stack(
    {**METERS, **tokens("cache_write_1h_tokens", "cache_write_tokens")},
    contracts=(column("cache_write_1h_tokens"),),
    conventions=({"source": "anthropic/*", "includes": {"cache_write_tokens": ["cache_write_1h_tokens"]}},),
)
AUDIO = Stack(
    {**METERS, **tokens("cached_audio_tokens", "cached_tokens")},
    contracts=(column("cached_audio_tokens", includes={"cached_tokens": ["cached_audio_tokens"]}),),
)
GUIDE = Stack(conventions=tuple(conventions_of_the_guide()))
BESIDE = Stack(conventions=({"source": "beside/*", "includes": {}},))
TIERS = Stack(
    contracts=(
        {
            "$id": USAGE,
            "allOf": [{"$ref": f"weir:{USAGE}"}],
            "properties": {
                "data": {"properties": {"service_tier": {"type": ["string", "null"], "x-weir-column": "service_tier"}}}
            },
        },
    ),
    price_attributes=(
        "service_tier",
        "cached",
        {"context": {"of": ["input_tokens"], "bands": {"short": "200000", "long": None}}},
    ),
)
OF_TIERS = {
    **GPT,
    **prices(of("gpt-4o", service_tier="priority"), input_tokens="4.25", cached_tokens="2.125", output_tokens="17"),
    **prices(of("gpt-4o", service_tier="batch"), input_tokens="1.25", output_tokens="5"),
    **prices(of("gpt-4o", context="long"), input_tokens="5"),
    **prices(of("gpt-4o", context="long", service_tier="batch"), input_tokens="2.6"),
    **prices(of("gpt-4o", cached="true"), input_tokens="0", output_tokens="0"),
}
IN_TEXTS: dict[str, Any] = {**shipped()[USAGE], "properties": {**shipped()[USAGE]["properties"]}}
_FIELDS = shipped()[USAGE]["properties"]["data"]["properties"]
IN_TEXTS["properties"]["data"] = {
    **shipped()[USAGE]["properties"]["data"],
    "properties": {
        name: {**said, "x-weir-number": "text_or_number"} if "integer" in said.get("type", ()) else said
        for name, said in _FIELDS.items()
    },
}
TRACE = {"$id": "trace", "allOf": [{"$ref": f"weir:{USAGE}"}], "x-weir-unnest": "/data/calls"}
MINI = prices("mini", input_tokens="0.15", output_tokens="0.6")
THOUSAND: Data = {"input_tokens": 1_000, "output_tokens": 100}
CACHED: Data = {"input_tokens": 2_006, "cached_tokens": 1_920, "output_tokens": 300}
CLAUDE = prices(
    "claude",
    input_tokens="3",
    cached_tokens="0.3",
    cache_write_tokens="3.75",
    cache_write_1h_tokens="6",
    output_tokens="15",
)
REALTIME = prices(
    "rt", input_tokens="5", cached_tokens="2.5", audio_input_tokens="40", cached_audio_tokens="0.3", output_tokens="20"
)
SPOKEN: Data = {"input_tokens": 1_000, "cached_tokens": 500, "audio_input_tokens": 400, "cached_audio_tokens": 200}

KINDS: Mapping[str, Kind] = {
    "Anthropic: 6,000 of 13,000 written to the cache for an hour": Kind(
        {**CLAUDE, **FREE},
        [
            usage(
                source="anthropic/1",
                model="claude",
                input_tokens=21,
                cached_tokens=188_086,
                output_tokens=393,
                cache_write_tokens=13_000,
                cache_write_1h_tokens=6_000,
            )
        ],
        # 21 × 3 + 188,086 × 0.3 + 7,000 × 3.75 + 6,000 × 6 + 393 × 15
        "124633.8",
        stack=HOURLY,
    ),
    "Anthropic's numbers of a source that nobody declared": Kind(
        {**CLAUDE, **FREE},
        [usage(model="claude", input_tokens=21, cached_tokens=188_086, output_tokens=393)],
        "0",
        refused=f"inconsistent_quantities: {USAGE} /data/input_tokens: at least ",
    ),
    "Anthropic: thinking within the output, the cache beside the input": Kind(
        {**CLAUDE, ("claude", "reasoning_tokens"): "10", **FREE},
        [
            usage(
                source="anthropic/2",
                model="claude",
                input_tokens=21,
                cached_tokens=900,
                cache_write_tokens=100,
                output_tokens=393,
                reasoning_tokens=300,
            )
        ],
        # 21 × 3 + 900 × 0.3 + 100 × 3.75 + 93 × 15 + 300 × 10
        "5103",
        stack=GUIDE,
    ),
    "Bedrock: reads and writes beside the input": Kind(
        {**CLAUDE, **FREE},
        [
            usage(
                source="beside/bedrock",
                model="claude",
                input_tokens=40,
                cached_tokens=900,
                cache_write_tokens=100,
                output_tokens=7,
            )
        ],
        # 40 × 3 + 900 × 0.3 + 100 × 3.75 + 7 × 15
        "870",
        stack=BESIDE,
    ),
    "Gemini: thoughts beside the candidates, the cache and audio within the prompt": Kind(
        {
            **prices("gemini", input_tokens="1.25", cached_tokens="0.31", audio_input_tokens="2"),
            **prices("gemini", output_tokens="10", reasoning_tokens="10"),
            **FREE,
        },
        [
            usage(
                source="gemini/1",
                model="gemini",
                input_tokens=5_000,
                cached_tokens=3_000,
                audio_input_tokens=1_000,
                output_tokens=200,
                reasoning_tokens=800,
            )
        ],
        # 1,000 × 1.25 + 3,000 × 0.31 + 1,000 × 2 + 200 × 10 + 800 × 10
        "14180",
        stack=GUIDE,
    ),
    "OpenAI's realtime: of 500 cached 200 are audio": Kind(
        {**REALTIME, **FREE},
        [usage(model="rt", output_tokens=0, **SPOKEN)],
        # 100 × 5 + 300 × 2.5 + 400 × 40 + 200 × 0.3
        "17310",
        stack=AUDIO,
    ),
    "cached audio has a price, and what is cached none": Kind(
        {key: price for key, price in REALTIME.items() if key[1] != "cached_tokens"} | FREE,
        [usage(model="rt", output_tokens=0, **SPOKEN)],
        # 400 × 5 + 400 × 40 + 200 × 0.3
        "18060",
        stack=AUDIO,
    ),
    "reasoning is free": Kind(
        {**GPT, ("gpt-4o", "reasoning_tokens"): "0"},
        [usage(input_tokens=17, output_tokens=482, reasoning_tokens=448)],
        # 17 × 2.5 + 34 × 10
        "382.5",
    ),
    "all of the input was cached": Kind(GPT, [usage(input_tokens=1_920, cached_tokens=1_920, output_tokens=0)], "2400"),
    "parts of the input are together more than it": Kind(
        GPT,
        [usage(input_tokens=100, cached_tokens=60, image_input_tokens=50, output_tokens=3)],
        "0",
        refused="inconsistent_quantities: ",
    ),
    "priority": Kind(
        OF_TIERS,
        [usage(service_tier="priority", input_tokens=1_000, cached_tokens=500, output_tokens=100)],
        # 500 × 4.25 + 500 × 2.125 + 100 × 17
        "4887.5",
        stack=TIERS,
    ),
    "priority was asked for, and the answer had the default": Kind(
        OF_TIERS,
        [usage(service_tier="priority", status="error"), usage(MINUTE, service_tier="default", **THOUSAND)],
        "3500",
        stack=TIERS,
    ),
    "a batch with a long context, and one at its bound": Kind(
        OF_TIERS,
        [
            usage(service_tier="batch", input_tokens=200_001, output_tokens=0),
            usage(name="r2", service_tier="batch", input_tokens=200_000, output_tokens=0),
        ],
        # 200,001 × 2.6 + 200,000 × 1.25
        "770002.6",
        stack=TIERS,
    ),
    "Portkey: one answer came from its cache": Kind(
        OF_TIERS, [usage(cached=True, **THOUSAND), usage(name="r2", cached=False, **THOUSAND)], "3500", stack=TIERS
    ),
    "vLLM: each chunk of a stream has the count so far, all as partial but the last": Kind(
        GPT,
        [
            usage(number * SECOND, input_tokens=1_000, output_tokens=20 * number, usage_source=source)
            for number, source in enumerate((*["partial"] * 4, "provider"), start=1)
        ],
        "3500",
    ),
    "vLLM: the chunks do not say that they are partial": Kind(
        GPT,
        [usage(number * SECOND, input_tokens=1_000, output_tokens=20 * number) for number in range(1, 6)],
        "3500",
        # The first decides at once, and an audit looks at the others.
        live="2700",
    ),
    "the count is null, and comes a minute later": Kind(GPT, [usage(), usage(MINUTE, **THOUSAND)], "3500", live="0"),
    "the count comes, and a minute later the answer once more without it": Kind(
        GPT, [usage(**THOUSAND), usage(MINUTE)], "3500"
    ),
    "LiteLLM: two models failed, and a third one answered": Kind(
        {**GPT, **MINI},
        [
            (timedelta(), REQUEST, {"request_id": "r1", "model": "gpt-4o"}, "gateway/1"),
            usage(SECOND, model="claude", status="error", input_tokens=1_000),
            usage(2 * SECOND, model="mini", **THOUSAND),
        ],
        # 1,000 × 0.15 + 100 × 0.6; until an audit looks by the model that was asked.
        "210",
        live="3500",
    ),
    "an attempt that failed as one event, and the answer of no model as another": Kind(
        GPT,
        [
            usage(status="error"),
            (SECOND, COMPLETION, {"request_id": "r1", "status": "completed", **THOUSAND}, "gateway/1"),
        ],
        "3500",
    ),
    "the client closed the stream, and an error came of it": Kind(
        GPT, [usage(status="cancelled", **THOUSAND), usage(SECOND, status="error", output_tokens=900)], "3500"
    ),
    "the SDK counts the cache beside the input, its gateway within it": Kind(
        GPT,
        [
            usage(**CACHED),
            usage(MINUTE, source="beside/sdk", input_tokens=86, cached_tokens=1_920, output_tokens=300),
        ],
        "5615",
        stack=BESIDE,
    ),
    "the numbers are texts": Kind(
        GPT,
        [usage(input_tokens="2006", cached_tokens="1920", output_tokens="300")],
        "5615",
        stack=Stack(contracts=(IN_TEXTS,)),
    ),
    "a number below 0 is text": Kind(
        GPT,
        [usage(input_tokens="-5")],
        "0",
        stack=Stack(contracts=(IN_TEXTS,)),
        refused=f"invalid_tokens: {USAGE} /data/input_tokens: at least 0; it is -5",
    ),
    "tokens below 0 are no credit": Kind(
        GPT, [usage(input_tokens=-1_000)], "0", refused=f"invalid_tokens: {USAGE} /data/input_tokens: at least 0"
    ),
    "half a token": Kind(
        GPT, [usage(output_tokens=812.5)], "0", refused=f"invalid_tokens: {USAGE} /data/output_tokens: type is integer"
    ),
    "an agent's trace, one of whose calls failed and was tried again": Kind(
        GPT,
        [
            (
                timedelta(),
                "trace",
                {
                    **called("run"),
                    "calls": [
                        THOUSAND,
                        {"request_id": "own", "status": "error", "input_tokens": 5},
                        {"request_id": "own", **THOUSAND},
                        {"input_tokens": 500, "cached_tokens": 400, "output_tokens": 0},
                    ],
                },
                "agent/1",
            )
        ],
        # Twice 3,500, and 100 × 2.5 + 400 × 1.25
        "7750",
        stack=Stack(contracts=(TRACE,)),
    ),
    "it is taken back before it comes": Kind(GPT, [back(timedelta()), usage(MINUTE, **CACHED)], "0", live="5615"),
    "more output is taken back than was billed": Kind(
        GPT, [back(timedelta(), meter="output_tokens", quantity=500), usage(MINUTE, **CACHED)], "2615", live="5615"
    ),
    "two credits of the output, and the request's own fee": Kind(
        {**GPT, ("*", "requests"): "70000"},
        [
            usage(**THOUSAND),
            back(SECOND, meter="output_tokens", quantity=30),
            back(2 * SECOND, meter="output_tokens", quantity=40),
            back(3 * SECOND, meter="requests"),
        ],
        # 1,000 × 2.5 + 30 × 10
        "2800",
        live="73500",
    ),
    "the input is taken back, of which the cached part is billed by itself": Kind(
        GPT, [usage(**CACHED), back(SECOND, meter="input_tokens")], "5400", live="5615"
    ),
    "20 of the cached tokens are taken back": Kind(
        GPT, [usage(**CACHED), back(SECOND, meter="cached_tokens", quantity=20)], "5590", live="5615"
    ),
    "a credit, an error, and the answer of another model": Kind(
        {**GPT, **MINI},
        [
            back(timedelta(), meter="output_tokens", quantity=30),
            usage(SECOND, status="error", output_tokens=10),
            usage(MINUTE, model="mini", **THOUSAND),
        ],
        # 1,000 × 0.15 + 70 × 0.6
        "192",
        live="210",
    ),
    "a credit of all of it is taken back at once": Kind(
        GPT, [usage(**THOUSAND), back(SECOND, meter="output_tokens", quantity=30), back(2 * SECOND)], "0", live="3500"
    ),
}


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_a_provider_or_gateway_reports_costs_what_is_fair(kind: Kind, tmp_path: Path) -> None:
    sent = Sent(tmp_path, kind.stack, kind.prices, reversal={"sources": ["desk"]})
    for at, event_type, data, source in kind.sent:
        said = sent.send(DAY + at, data, kind=event_type, source=source)
        assert (said or "").startswith(kind.refused or ""), said
        assert (said is None) == (kind.refused is None), said
        sent.joined(DAY + at + SECOND / 2)
    live, then = live_and_audited(sent)
    costs = Decimal(kind.costs) / MILLION
    assert (live, then) == (costs if kind.live is None else Decimal(kind.live) / MILLION, costs)
    assert sent.unpriced == {}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("is_audited_between", [False, True])
def test_the_price_of_a_part_that_comes_late_and_a_credit_of_the_whole_cost_the_same_in_any_order(
    tmp_path: Path, *, is_audited_between: bool
) -> None:
    """A credit is capped at what its meter bills by itself: 86 of 1,000, once the cached part has its price."""
    without = {key: price for key, price in GPT.items() if key[1] != "cached_tokens"}
    sent = Sent(tmp_path, Stack(), without, reversal={"sources": ["desk"]})
    sent.send(DAY, called(**CACHED))
    _, event_type, data, source = back(MINUTE, meter="input_tokens", quantity=1_000)
    sent.send(DAY + MINUTE, data, kind=event_type, source=source)
    sent.joined(DAY + HOUR)
    if is_audited_between:
        audited(sent, DAY + HOUR, sent.present)
        # 1,006 × 2.5 + 300 × 10
        assert sent.amount == Decimal("0.005515")
    sent.price_of(DAY + 2 * HOUR, "gpt-4o", "cached_tokens", "1.25")
    # 1,920 × 1.25 + 300 × 10
    assert live_and_audited(sent, DAY + 3 * HOUR)[1] == Decimal("0.0054")


@pytest.mark.long
def test_a_batch_that_is_answered_a_day_later_is_billed_after_an_audit(tmp_path: Path) -> None:
    sent = Sent(tmp_path, Stack(), GPT)
    sent.send(DAY, {"request_id": "r1", "model": "gpt-4o"}, kind=REQUEST)
    sent.joined(DAY + HOUR)
    audited(sent, DAY + HOUR, sent.present)
    sent.send(2 * DAY, {"request_id": "r1", "status": "completed", **THOUSAND}, kind=COMPLETION)
    assert live_and_audited(sent, 2 * DAY + HOUR) == (Decimal(0), Decimal("0.0035"))


@pytest.mark.long
def test_an_id_that_is_used_again_beyond_reach_is_another_request_and_a_reversal_is_of_one(tmp_path: Path) -> None:
    sent = Sent(tmp_path, Stack(), GPT, joins={"rejoin_seconds": 3_600}, reversal={"sources": ["desk"]})
    for number in range(2):
        at = DAY + number * 2 * HOUR
        sent.send(at, called(**THOUSAND))
        sent.joined(at + MINUTE)
    assert sent.amount == Decimal("0.007")
    _, event_type, data, source = back(MINUTE)
    sent.send(DAY + 2 * HOUR + MINUTE, data, kind=event_type, source=source)
    assert live_and_audited(sent, DAY + 4 * HOUR) == (Decimal("0.007"), Decimal("0.0035"))
