"""The traffic reports what only some gateways know, and its truth has what the stack declares: read from the bytes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from cli.demo import CONFIG
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.joins.memory import condition_of, quantity_of
from jobs.joins.quantities import quantities as product_quantities
from jobs.stack import StackConfig
from metering.meters import DETAILS
from tests.e2e import conftest as e2e
from tests.faults import stage
from tests.pipelines.ingestion import records_of
from tests.rules.test_traffic_truth import POLICY, large, run
from traffic.declared import CONTRACT, CONTRACTS, DECLARED, DECLARED_BY_OUTCOME, REVERSAL
from traffic.events import GATEWAY_OF_SECONDS
from traffic.meters import DEFAULT, METERS, REPORTED, Meter, Used, quantities
from traffic.placement import Policy
from traffic.script import desk_of
from traffic.truth import truth_of

CLUSTER = Path(__file__).parents[1] / "cluster" / "values.yaml"
COLUMNS = (*REPORTED, "reasoning_tokens", "gpu_seconds")
V1, V2, OF_SECONDS = "ai.inference.completion.v1", "ai.inference.completion.v2", "com.example.completion"


OPEN: dict[str, Any] = {"ingestion": IngestionConfig(), "joins": JoinsConfig()}
"""What leaves open which meters there are by default."""


def policy_of(config: dict[str, Any]) -> Policy:
    """Of a stack with this configuration, as its applications write it down."""
    return Policy.of({name: job.model_dump(mode="json") for name, job in StackConfig.model_validate(config).items()})


def reported(document: dict[str, Any]) -> dict[str, Decimal | None]:
    """What a completion or usage event says of what was used, by column."""
    data = document["data"]
    said = {**data, **{f"{name}_tokens": tokens for name, tokens in data.get("usage", {}).items()}}
    return {name: None if said[name] is None else Decimal(said[name]) for name in COLUMNS if name in said}


def test_an_outcome_has_the_reported_quantities_of_its_completion() -> None:
    traffic, truth = large()
    said: dict[tuple[str, str], list[tuple[str, dict[str, Decimal | None]]]] = defaultdict(list)
    for record in traffic.records:
        if record.disposition != "accepted":
            continue
        document = json.loads(record.value, parse_float=Decimal)
        if document["type"].split(".")[2:3] in (["completion"], ["usage"]):
            said[document["subject"], document["data"]["request_id"]].append((document["type"], reported(document)))
        for number, call in enumerate(document["data"].get("calls", ()), 1):
            request_id = f"{document['data']['request_id']}/{number}"
            said[document["subject"], request_id].append((document["type"], reported({"data": call})))
    seen: dict[str, set[str]] = defaultdict(set)
    for outcome in truth["outcomes"]:
        found = {meter: quantity and Decimal(quantity) for meter, quantity in outcome["quantities"].items()}
        told = said[outcome["account"], outcome["request_id"]]
        if outcome["outcome"] == "superseded":
            assert found == {}
        elif not told and outcome["request_id"] != "quantity":
            assert found == {"requests": 1, "answers": 1}
        elif outcome["request_id"] == "quantity":
            assert len(found) == 1
        elif len(told) == 1:
            ((kind, used),) = told
            is_matched = outcome["outcome"] == "matched"
            of_used = {n: used[n] for n in used if used[n] is not None or (is_matched and n in REPORTED)}
            assert found == of_used | ({"requests": 1, "answers": 1} if is_matched else {})
            seen[kind] |= of_used.keys()
    assert seen[V1] == seen["ai.inference.usage.v1"] == seen["com.example.trace"] == set(REPORTED)
    assert seen[V2] == {*REPORTED, "reasoning_tokens"}
    assert seen[OF_SECONDS] == {*REPORTED, "gpu_seconds"}


def test_seconds_are_reported_and_billed_to_six_decimals() -> None:
    _, truth = large()
    said = [o["quantities"]["gpu_seconds"] for o in truth["outcomes"] if o["quantities"].get("gpu_seconds")]
    assert {len(text.partition(".")[2].rstrip("0")) for text in said} >= {0, 5, 6}
    billed = [total for total in truth["totals"] if total["meter"] == "gpu_seconds" and total["price_from"]]
    assert max(len(total["amount"].rstrip("0").partition(".")[2]) for total in billed) == 18
    assert all(Decimal(t["amount"]) == Decimal(t["quantity"]) * Decimal(t["unit_price"]) for t in billed)


def test_a_stack_of_default_meters_is_sent_no_seconds_and_has_no_total_of_what_it_does_not_declare() -> None:
    policy = policy_of({})
    assert (policy.meters, policy.knows_seconds) == (DEFAULT, False)
    traffic = run(7, policy=policy)
    assert {price.meter for price in traffic.late.after.prices} == set(METERS)
    assert {meter for outcome in truth_of(traffic)["outcomes"] for meter in outcome["quantities"]} == set(METERS)
    assert {total["meter"] for total in truth_of(traffic)["totals"]} == set(METERS)
    assert not any(str(record.source).startswith(GATEWAY_OF_SECONDS) for record in traffic.records)
    assert any(b'"reasoning":' in record.value for record in traffic.records)


def test_a_new_stack_of_default_meters_is_billed_for_the_reasoning_that_some_gateways_report() -> None:
    settled = {name: config.settled((), is_new=True) for name, config in OPEN.items()}
    known = {**dict(StackConfig().items()), **settled}
    policy = Policy.of({name: config.model_dump(mode="json") for name, config in known.items()})
    assert {meter.name for meter in policy.meters} == {*METERS, *(part.name for part in DETAILS)}
    traffic = run(7, 4_000, policy=policy)
    assert {total["meter"] for total in truth_of(traffic)["totals"]} == {*METERS, "reasoning_tokens"}
    # None of its contracts refuses what the truth says is accepted, such as more reasoning than output.
    accepted = [record.value for record in traffic.records if record.disposition == "accepted"]
    rows = (
        OPEN["ingestion"]
        .settled((), is_new=True)
        .validator()
        .validate(records_of(accepted))
        .select(["reason", "violation"])
        .to_pylist()
    )
    assert [row for row in rows if row["reason"] is not None] == []


def test_ingestion_takes_the_runs_of_agents_apart_as_the_truth_says() -> None:
    traffic, truth = large()
    records = [record for record in traffic.records if record.kind.endswith("trace")]
    config = IngestionConfig.model_validate({"contracts": list(CONTRACTS), "meters": DECLARED["meters"]})
    validated = pl.DataFrame(config.validator().validate(records_of([record.value for record in records])))
    rows = {offset: validated.filter(pl.col("offset") == offset) for offset in validated["offset"].unique()}
    taken: Counter[tuple[Any, ...]] = Counter()
    for record, (_, found) in zip(records, sorted(rows.items()), strict=True):
        assert (record.disposition == "rejected") == found["reason"].is_not_null().all(), record
        if record.disposition == "accepted":
            taken.update(found.select("account", "request_id", "model", "input_tokens", "output_tokens").iter_rows())
        elif record.disposition == "rejected":
            assert found["reason"].to_list() == ["invalid_tokens"]
    expected: Counter[tuple[Any, ...]] = Counter()
    for one in truth["outcomes"]:
        if "/" in one["request_id"]:
            tokens = (int(Decimal(one["quantities"][name])) for name in ("input_tokens", "output_tokens"))
            expected[(one["account"], one["request_id"], one["model"], *tokens)] += 1
    assert expected == taken
    assert len(taken) > 2 * len(records)


def test_declared_contracts_accept_all_events_that_the_truth_accepts() -> None:
    given = {"contracts": list(CONTRACTS), "meters": DECLARED["meters"], "reversal": REVERSAL}
    config = IngestionConfig.model_validate(given)
    accepted = [record.value for record in run(7, 4_000).records if record.disposition == "accepted"]
    validated = pl.DataFrame(
        config.validator().validate(records_of(accepted)).select(["reason", "violation", "family"])
    )
    assert validated.filter(pl.col("reason").is_not_null()).is_empty()
    assert validated.filter(pl.col("family") == "quantity").height >= 8
    assert validated.filter(pl.col("family") == "reversal").height >= 20


@pytest.mark.parametrize("contracts", [[], [{**CONTRACT, "properties": {}}]])
def test_a_stack_that_reads_other_completions_is_sent_no_seconds(contracts: list[dict[str, Any]]) -> None:
    policy = Policy.of({"ingestion": {"contracts": contracts}, "joins": DECLARED})
    assert not policy.knows_seconds
    assert "gpu_seconds" not in {total["meter"] for total in truth_of(run(7, policy=policy))["totals"]}


def test_what_a_stack_declares_by_other_names_is_billed_by_these() -> None:
    meters = {
        "calls": {"unit": "call", "count": "outcomes"},
        "prompts": {"unit": "token", "sum": "input_tokens", "late_policy": "drop"},
        "thoughts": {"unit": "token", "sum": "reasoning_tokens", "expected": True},
        "images": {"unit": "image", "sum": "images"},
    }
    policy = Policy.of({"joins": {"meters": meters}})
    assert policy.late_policy == {"prompts": "drop"}
    assert policy.meters == (
        *(Meter("calls"), Meter("images", "images"), Meter("prompts", "input_tokens", is_expected=True)),
        Meter("thoughts", "reasoning_tokens", is_expected=True),
    )
    truth = truth_of(run(7, policy=policy))
    assert {total["meter"] for total in truth["totals"]} == {"calls", "prompts", "thoughts"}
    assert {s["decision"] for s in truth["stragglers"] if s["meter"] == "prompts"} == {"drop"}
    matched = [outcome["quantities"] for outcome in truth["outcomes"] if outcome["outcome"] == "matched"]
    assert {frozenset(quantities) for quantities in matched} == {frozenset(("calls", "prompts", "thoughts"))}
    assert None in {quantities["thoughts"] for quantities in matched}


NOTHING_KNOWN = dict.fromkeys(COLUMNS)
ALL_KNOWN = {**dict.fromkeys(COLUMNS, Decimal(2)), "gpu_seconds": Decimal("0.000001")}


@pytest.mark.parametrize("outcome", ["matched", "abandoned", "orphaned", "superseded"])
@pytest.mark.parametrize("told", [{}, NOTHING_KNOWN, ALL_KNOWN])
@pytest.mark.parametrize(
    ("status", "region"), [("completed", "eu"), ("error", "eu"), ("completed", "us"), (None, None)]
)
def test_differential_an_outcomes_quantities_are_those_of_the_product(
    outcome: str, told: Used, status: str | None, region: str | None
) -> None:
    of_sums = {f"of {name}": {"unit": "u", "sum": name, "expected": True} for name in COLUMNS}
    of_some = {"answers": {"unit": "answer", "count": "outcomes", "where": {"status": ["completed"], "region": "eu"}}}
    of_some |= {"prompts": {"unit": "token", "sum": "input_tokens", "where": {"status": ["completed", "error"]}}}
    said = {**DECLARED["meters"], **of_some, **{name.replace(" ", "_"): meter for name, meter in of_sums.items()}}
    config = JoinsConfig.model_validate({"meters": said})
    # A request alone has no completion that told anything, whatever stands beside it.
    reports = {} if outcome in ("abandoned", "superseded") else told
    reported = {quantity_of(name): quantity for name, quantity in reports.items()}
    row = {"outcome": outcome, "status": status, condition_of("region"): region, **reported}
    rows = pl.DataFrame([row], schema={"outcome": pl.String(), **config.carried})
    theirs = dict(product_quantities(rows, config.declared).select("meter", "quantity").iter_rows())
    texts = {name: text for name, text in (("status", status), ("region", region)) if text is not None}
    by_minute = [Meter.of(name, meter) for name, meter in said.items() if "period" not in meter]
    assert quantities(by_minute, outcome, reports, texts) == theirs


def test_a_meter_with_conditions_counts_matching_outcomes() -> None:
    where: dict[str, dict[str, Any]] = {
        "requests": {"status": ["completed", "cancelled"]},
        "calls": {"operation": "chat", "region": "gateway-us"},
    }
    meters = {name: {"unit": name, "count": "outcomes", "where": asked} for name, asked in where.items()}
    traffic = run(7, policy=Policy.of({"joins": {"meters": meters}}))
    said: dict[str, set[tuple[str, Any]]] = defaultdict(set)
    for record in traffic.records:
        if record.disposition == "accepted" and record.kind in ("normal", "abandoned"):
            data = json.loads(record.value)["data"]
            said[data["request_id"]] |= {(name, data.get(name)) for name in ("status", "operation", "region")}
    outcomes = [one for one in truth_of(traffic)["outcomes"] if one["request_id"] in said]
    found = {(meter, outcome["request_id"]) for outcome in outcomes for meter in outcome["quantities"]}
    assert found == {
        (meter, name)
        for name, pairs in said.items()
        for meter, asked in where.items()
        if all(pairs & {(c, v) for v in ([each] if isinstance(each, str) else each)} for c, each in asked.items())
    }
    assert {meter for meter, _ in found} == set(meters)
    assert len(found) < 2 * len(outcomes)


def test_stacks_that_are_compared_declare_all_that_the_traffic_reports() -> None:
    assert policy_of(CONFIG).meters == policy_of(stage.CONFIG).meters == POLICY.meters
    assert policy_of(CONFIG).period_meters == policy_of(stage.CONFIG).period_meters == POLICY.period_meters
    for config in (CONFIG, stage.CONFIG):
        assert policy_of(config).knows_seconds
        assert policy_of(config).knows_traces
        assert policy_of(config).knows_tokens
        assert policy_of(config).knows_attributes
        assert policy_of(config).may_reverse(desk_of("a run"))
    assert {name: e2e.CONFIG[name] for name in DECLARED} == DECLARED_BY_OUTCOME
    assert e2e.CONFIG["jobs"]["ingestion"]["contracts"] == list(CONTRACTS)
    assert e2e.CONFIG["jobs"]["ingestion"]["reversal"] == REVERSAL
    values = yaml.safe_load(CLUSTER.read_text(encoding="utf-8"))
    values["price_attributes"] = values["priceAttributes"]
    assert {name: values[name] for name in (*DECLARED, "contracts")} == {
        **DECLARED_BY_OUTCOME,
        "contracts": list(CONTRACTS),
    }
    assert values["jobs"]["ingestion"]["config"]["reversal"] == REVERSAL
