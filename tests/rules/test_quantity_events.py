"""Events of the family quantity: what their contracts say, what ingestion makes of them, and who counts them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from jobs.audit.bills.proof import OF_REQUESTS
from jobs.audit.recompute.late_contracts import Later, LaterContracts
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.joins.memory import quantity_of
from jobs.joins.quantities import quantities
from jobs.joins.timeouts import Timeouts
from jobs.rebuild.sessions import mini_sessions
from jobs.runtime.effective_rules import EffectiveRules
from jobs.sessionization.config import SessionizationConfig
from metering.contracts.field_reader import ContractRefused
from metering.contracts.schema import contract_of
from metering.contracts.shipped import shipped
from metering.instants import rfc3339
from metering.joining import FINAL
from metering.meter_sentences import explanation
from metering.quantity_events import is_of_quantity
from metering.vocabulary import Status, UsageSource
from tests.corpus import RECEIVED_AT
from tests.pipelines.ingestion import rows_of

TOKENS = "prompt"
FIELDS: dict[str, Any] = {
    "model": {"type": "string", "x-weir-column": "model"},
    "type": {"enum": ["input", "output"], "x-weir-column": "token_type"},
    "tokens": {"type": "integer", "minimum": 0, "x-weir-column": "tokens", "x-weir-number": "text_or_number"},
}
TOTALS = {"unit": "token", "sum": "tokens"}
COUNTED = {"unit": "request", "count": "outcomes"}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
Row = dict[str, Any]


def contract(**fields: Any) -> Row:
    data = {"required": ["model", "type", "tokens"], "properties": {**FIELDS, **fields}}
    return {"$id": TOKENS, "x-weir-family": "quantity", "properties": {"data": data}}


CONFIG = IngestionConfig.model_validate({"contracts": [contract()]})


def event(name: str, kind: str = TOKENS, source: str = "kong/1", **data: Any) -> bytes:
    said = {"model": "gpt-4o", "type": "input", "tokens": "1200"} if kind == TOKENS else {"model": "m"}
    envelope = {"specversion": "1.0", "type": kind, "source": source, "id": name, "subject": "acme"}
    return json.dumps({**envelope, "time": rfc3339(RECEIVED_AT), "data": {**said, **data}}).encode()


def made_id(name: str, source: str = "kong/1") -> str:
    """The request id of such an event, by what the guide says of it."""
    return "quantity:" + sha256(f"{len(source)}:{source}{name}".encode()).hexdigest()[:32]


@pytest.mark.parametrize("strictly", [False, True], ids=["as a block", "record by record"])
def test_the_request_id_is_made_of_source_and_id_alone(*, strictly: bool) -> None:
    events = [event("1"), event("2", tokens=300, type="output"), event("1", source="kong/2"), event("1", tokens="9")]
    rows = rows_of(events, CONFIG, strictly=strictly)
    assert [row["reason"] for row in rows] == [None] * 4
    assert {row["family"] for row in rows} == {"quantity"}
    assert [row["tokens"] for row in rows] == [1200, 300, 1200, 9]
    names = [made_id("1"), made_id("2"), made_id("1", "kong/2"), made_id("1")]
    assert [row["request_id"] for row in rows] == names
    assert all(is_of_quantity(name) for name in names)


def test_an_event_that_breaks_its_contract_or_has_no_id_is_a_dead_letter_as_any() -> None:
    nameless = json.loads(event("1"))
    del nameless["id"]
    rows = rows_of([event("1", type="reasoning"), event("2", tokens=None), json.dumps(nameless).encode()], CONFIG)
    assert [row["reason"] for row in rows] == ["invalid_data", "invalid_data", "invalid_id"]
    assert rows[2]["request_id"] is None


def test_a_quantity_contract_has_a_model_and_no_request() -> None:
    own = {"x-weir-column": "request_id", "type": "string"}
    with pytest.raises(ContractRefused, match="known by its identity, not by a request; give the field another"):
        contract_of(contract(call=own), shipped())
    with pytest.raises(ContractRefused, match="an event of the family quantity needs a field with the column model"):
        contract_of(contract(model={"type": "string", "x-weir-column": "engine"}), shipped())
    assert contract_of(contract(call={**own, "x-weir-column": "call_id"}), shipped()).family == "quantity"


def test_no_other_event_can_take_the_place_of_a_quantity() -> None:
    names = [made_id("1"), f"{made_id('1')}0", "quantity:1", "r"]
    said = {"kind": "ai.inference.usage.v1", "status": "completed"}
    usage = [event(f"u{number}", request_id=name, **said) for number, name in enumerate(names)]
    assert [row["reason"] for row in rows_of(usage, CONFIG)] == ["invalid_request_id", None, None, None]
    [violation, *_] = [row["violation"] for row in rows_of(usage, CONFIG)]
    assert "not as the request id of an event of the family quantity" in violation
    assert [row["reason"] for row in rows_of(usage, IngestionConfig())] == [None] * 4, "where nobody declared any"


def test_a_reversal_names_a_quantity_by_its_made_request_id() -> None:
    config = IngestionConfig.model_validate({"contracts": [contract()], "reversal": {"sources": ["desk"]}})
    said = {"request_id": made_id("1"), "reason": "a dispute"}
    [row] = rows_of([event("d", "ai.inference.reversal.v1", "desk", **said)], config)
    assert (row["reason"], row["family"], row["request_id"]) == (None, "reversal", made_id("1"))


def test_a_contract_that_comes_late_makes_the_same_request_id() -> None:
    later = LaterContracts((Later(10, {TOKENS: contract_of(contract(), shipped())}),))
    place = {"topic": "events", "partition": 0, "key": None, "type": TOKENS, "received_at": RECEIVED_AT}
    absent: Row = {"family": None, "request_id": None, "tokens": None}
    said = [{**place, **absent, "lsn": n, "offset": n, "account": "acme", "value": event(str(n))} for n in (1, 2)]
    kinds = {"family": pl.String, "request_id": pl.String, "tokens": pl.Int64, "key": pl.Binary}
    columns = ("lsn", "family", "account", "request_id", "tokens")
    taken = later.takes(pl.DataFrame(said, schema_overrides=kinds), columns).sort("lsn")
    assert taken.rows() == [(n, "quantity", "acme", made_id(str(n)), 1200) for n in (1, 2)]


@pytest.mark.parametrize("status", [None, *Status])
@pytest.mark.parametrize("source", [None, *UsageSource])
def test_no_report_outranks_a_quantity_event(status: str | None, source: str | None) -> None:
    rules = {"completion_timeout_seconds": 60, "completion_timeouts": {}, "best_report_bills": True}
    row = {"lsn": 1, "family": "quantity", "model": "m", "status": status, "usage_source": source}
    kinds = dict.fromkeys(("status", "usage_source"), pl.String)
    rows = pl.DataFrame([row], schema_overrides=kinds).with_columns(Timeouts((EffectiveRules(1, rules),)).of_row())
    assert rows["merit"].to_list() == [FINAL]


def counted(meters: Row, *outcomes: Row) -> list[dict[str, Decimal | None]]:
    """By outcome what is counted of each meter."""
    config = JoinsConfig.model_validate({"meters": meters})
    schema = {"outcome": pl.String(), "status": pl.String(), **config.carried}
    said = [{"outcome": "matched", **outcome} for outcome in outcomes]
    found = quantities(pl.DataFrame(said, schema=schema), config.declared)
    return [dict(found.filter(row=number).select("meter", "quantity").iter_rows()) for number in range(len(outcomes))]


BOTH: Row = {"family": "both", "status": "completed", quantity_of("input_tokens"): Decimal(5)}
QUANTITY: Row = {"family": "quantity", quantity_of("tokens"): Decimal(7), "where:token_type": "input"}


@pytest.mark.parametrize("where", [None, {"status": ["completed"]}], ids=["of all", "of some"])
def test_quantity_events_count_only_in_meters_that_ask_for_them(where: Row | None) -> None:
    meters = {
        "requests": COUNTED if where is None else {**COUNTED, "where": where},
        "calls": {**COUNTED, "where": {"family": "quantity", "token_type": "input"}},
        "answers": {**COUNTED, "where": {"family": "quantity", "token_type": "output"}},
        "prompt": {**TOTALS, "where": {"token_type": "input"}},
    }
    assert counted(meters, BOTH, QUANTITY) == [{"requests": 1}, {"calls": 1, "prompt": 7}]


def test_a_quantity_event_need_not_report_what_a_completion_does() -> None:
    expected = {"unit": "token", "sum": "input_tokens"}
    silent = {**BOTH, quantity_of("input_tokens"): None}
    assert counted({"input_tokens": expected, "tokens": TOTALS}, silent, QUANTITY) == [
        {"input_tokens": None},
        {"tokens": 7},
    ]


REFUSED: dict[str, tuple[Row, list[Row], str]] = {
    "a count by what quantities alone say": (
        {**COUNTED, "where": {"token_type": "input"}},
        [contract()],
        "only events of the family quantity have: `count: outcomes` counts these where `where` has `family: quantity`",
    ),
    "a type that no event has": (
        {**TOTALS, "where": {"token_type": "thought"}},
        [contract()],
        "requires token_type 'thought', which no event has; it can be input, output",
    ),
    "another family": (
        {**COUNTED, "where": {"family": "both"}},
        [contract()],
        "requires family 'both', which no event has; it can be quantity",
    ),
    "quantities that no contract declares": (
        {**COUNTED, "where": {"family": "quantity"}},
        [],
        "names family, which is not a text or boolean column of a contract",
    ),
    "quantities by what requests alone say": (
        {**COUNTED, "where": {"family": "quantity", "region": "eu"}},
        [contract()],
        "names region, which is not a text or boolean column of a contract; it can name family, model, token_type",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_meter_that_would_count_nothing_is_refused_at_the_start(name: str) -> None:
    meter, contracts, sentence = REFUSED[name]
    with pytest.raises(ValidationError, match=sentence):
        IngestionConfig.model_validate({"contracts": contracts, "meters": {"some": meter}})


def test_family_is_no_attribute_of_prices_and_no_dimension() -> None:
    for named in ({"price_attributes": ["family"]}, {"dimensions": ["family"]}):
        with pytest.raises(ValidationError, match="family"):
            IngestionConfig.model_validate({"contracts": [contract()], **named})


def test_a_sentence_says_that_a_meter_counts_events_of_no_request() -> None:
    given = {"contracts": [contract()], "meters": {"calls": {**COUNTED, "where": {"family": "quantity"}}}}
    [calls] = IngestionConfig.model_validate(given).declared
    assert explanation(calls, 0.01) == (
        "calls counts each event of the family quantity as 1 request, priced per request by plan and model."
    )


def test_quantities_are_no_activity_of_a_session() -> None:
    said = {"disposition": "accepted", "account": "a", "user_id": "u"}
    families = ["request", "quantity", "completion", "both", "quantity"]
    rows = [
        {**said, "lsn": lsn, "type": "t", "family": family, "event_time": NOON + timedelta(seconds=lsn)}
        for lsn, family in enumerate(families, 1)
    ]
    sessions = mini_sessions(pl.DataFrame(rows).select(OF_REQUESTS), SessionizationConfig()).to_pylist()
    [session] = sessions
    assert (session["session_start"], session["events"]) == (NOON + timedelta(seconds=1), 2)
