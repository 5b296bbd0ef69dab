"""What the truth says of usage that is taken back: live nothing of it, and after an audit what the reversals leave."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from itertools import permutations
from typing import Any

import polars as pl
import pytest

from jobs.ingestion.config import IngestionConfig
from jobs.joins.credits import CREDITS, KIND, credited
from metering.pricing import BILLED_AS_PART
from tests.pipelines.ingestion import records_of
from tests.rules.test_traffic_truth import DECLARED_KINDS, POLICY, documents, run
from traffic.bills import Credits, audited_bill, live_bill, taken_of
from traffic.declared import CONTRACTS, DECLARED, REVERSAL
from traffic.events import REVERSAL as REVERSAL_TYPE
from traffic.generate import Traffic
from traffic.meters import CONTENT
from traffic.script import TakenBack, desk_of
from traffic.truth import Truth, truth_of

Key = tuple[str, str]


@lru_cache(maxsize=1)
def sample() -> tuple[Traffic, Truth]:
    traffic = run(7, records=4_000)
    return traffic, truth_of(traffic)


def asked(traffic: Traffic) -> dict[Key, list[dict[str, Any]]]:
    """By request what accepted reversals say, each event once, read from the bytes."""
    found = defaultdict(list)
    for record in traffic.records:
        if record.disposition == "accepted" and record.kind in ("reversal", "credit"):
            document = json.loads(record.value, parse_float=Decimal)
            assert document["type"] == REVERSAL_TYPE
            found[document["subject"], document["data"]["request_id"]].append(document["data"])
    return found


def credits_in(said: list[dict[str, Any]]) -> Credits | None:
    """What they take back by meter; None: all."""
    found: dict[str, list[Decimal | None]] = defaultdict(list)
    for one in said:
        if "meter" not in one:
            return None
        found[one["meter"]].append(None if "quantity" not in one else Decimal(one["quantity"]))
    left: dict[str, Decimal | None] = {}
    for meter, listed in found.items():
        known = [each for each in listed if each is not None]
        left[meter] = sum(known, Decimal(0)) if len(known) == len(listed) else None
    return left


def test_reversed_usage_follows_from_the_accepted_reversals() -> None:
    traffic, truth = sample()
    said = {key: credits_in(each) for key, each in asked(traffic).items()}
    assert taken_of(traffic.taken_back) == said
    left = {(o["account"], o["request_id"]): o["left"] for o in truth["outcomes"] if "left" in o}
    of_nobody = {key for key in said if key[1].endswith(".nobody")}
    assert said.keys() - left.keys() == of_nobody != set()
    assert all((left[key] is None) == (said[key] is None) for key in left.keys() & said.keys())
    assert all(Decimal(left[key]["answers"]) == 0 for key in left.keys() - said.keys())


def test_live_billing_ignores_reversals() -> None:
    traffic, truth = sample()
    nothing = truth_of(replace(traffic, taken_back=()))
    for name in ("records", "totals", "stragglers", "periods", "sessions", "late", "sources"):
        assert truth[name] == nothing[name]
    live, others = (
        [{n: v for n, v in o.items() if n != "left"} for o in each["outcomes"]] for each in (truth, nothing)
    )
    assert live == others
    assert all(truth["audited"][name] != nothing["audited"][name] for name in ("totals", "stragglers", "periods"))


def quantities_in(totals: list[dict[str, Any]]) -> dict[str, Decimal]:
    found: dict[str, Decimal] = defaultdict(Decimal)
    for total in totals:
        found[total["meter"]] += Decimal(total["quantity"])
    return found


def test_after_an_audit_each_meter_is_reduced_by_reversed_usage() -> None:
    traffic, truth = sample()
    # Only what knew the late catalog, and has no content: an audit prices the rest anew, or counts it once, which is
    # not the matter here.
    alone = [o for o in traffic.outcomes if o.knows_late and CONTENT not in o.texts]
    knows = replace(traffic, outcomes=alone)
    truth, nothing = truth_of(knows), truth_of(replace(knows, taken_back=()))
    assert nothing["audited"]["totals"] == nothing["totals"]
    less: dict[str, Decimal] = defaultdict(Decimal)
    for outcome in truth["outcomes"]:
        if "left" in outcome:
            for meter, quantity in outcome["quantities"].items():
                less[meter] += Decimal(quantity or 0) - Decimal((outcome["left"] or {}).get(meter) or 0)
    dropped: dict[str, Decimal] = defaultdict(Decimal)
    for sign, stragglers in ((1, truth["stragglers"]), (-1, truth["audited"]["stragglers"])):
        for one in stragglers:
            dropped[one["meter"]] += sign * Decimal(one["quantity"]) * (one["decision"] == "drop")
    was, stands = quantities_in(truth["totals"]), quantities_in(truth["audited"]["totals"])
    assert {meter: was[meter] - stands[meter] for meter in less} == {
        meter: quantity - dropped[meter] for meter, quantity in less.items()
    }
    assert all(less[meter] > 0 for meter in ("requests", "input_tokens", "output_tokens"))


def test_an_amount_after_an_audit_is_its_quantity_times_its_price_and_a_price_that_came_late_is_one() -> None:
    _, truth = sample()
    for total in truth["audited"]["totals"]:
        quantity, price = Decimal(total["quantity"]), Decimal(total["unit_price"] or 0)
        assert quantity > 0
        assert Decimal(total["amount"]) == quantity * price
    unpriced = [
        {t["model"] for t in totals if t["price_from"] is None and t["unit_price"] is None and t["currency"]}
        for totals in (truth["totals"], truth["audited"]["totals"])
    ]
    assert {"late-price", "late-alias"} <= unpriced[0]
    assert not {"late-price"} & unpriced[1]


def test_differential_credits_reduce_lines_as_in_the_applications() -> None:
    traffic, _ = sample()
    taken = taken_of(traffic.taken_back)
    compared = 0
    for outcome in traffic.outcomes:
        credits_of = taken.get((outcome.account, outcome.request_id))
        if not credits_of or outcome.outcome == "superseded":
            continue
        bill, lines = audited_bill(traffic, outcome, credits_of), live_bill(traffic, outcome).lines
        entries = [(0, line.meter, Decimal(line.own), 5) for line in lines]
        entries += [(0, line.meter, Decimal(line.elsewhere), BILLED_AS_PART) for line in lines if line.elsewhere]
        schema: dict[str, Any] = {
            "row": pl.UInt32,
            "meter": pl.String,
            "quantity": pl.Decimal(38, 6),
            "version_lsn": pl.Int64,
        }
        given = [{"meter": meter, "credit": credit} for meter, credit in credits_of.items()]
        left = credited(
            pl.DataFrame(entries, schema=schema, orient="row"), pl.DataFrame({CREDITS: [given]}, schema={CREDITS: KIND})
        )
        theirs = {(meter, version == 5): quantity for _, meter, quantity, version in left.iter_rows() if quantity}
        ours = {(line.meter, is_own): each for line in bill.lines for is_own, each in _parts(line) if each}
        assert ours == theirs
        compared += 1
    assert compared >= 10


def _parts(line: Any) -> tuple[tuple[bool, Any], ...]:
    return (True, line.own), (False, line.elsewhere)


def test_in_which_order_reversals_came_changes_nothing() -> None:
    one = [TakenBack("a", "r", "input_tokens", Decimal(n)) for n in (1, 2)]
    several = [*one, TakenBack("a", "r", "output_tokens", None), TakenBack("b", "r", None, None)]
    found = [taken_of(order) for order in permutations([*several, TakenBack("b", "r", "input_tokens", Decimal(9))])]
    assert all(each == found[0] for each in found)
    assert found[0] == {("a", "r"): {"input_tokens": Decimal(3), "output_tokens": None}, ("b", "r"): None}


def test_reversals_come_before_what_they_take_back_and_after_it() -> None:
    traffic, _ = sample()
    first: dict[Key, int] = {}
    for at_ms, document in documents(traffic):
        if document["type"] != REVERSAL_TYPE and "request_id" in document["data"]:
            first.setdefault((document["subject"], document["data"]["request_id"]), at_ms)
    when = {
        at_ms > first[key]
        for at_ms, document in documents(traffic)
        if document["type"] == REVERSAL_TYPE and (key := (document["subject"], document["data"]["request_id"])) in first
    }
    assert when == {True, False}


def test_ingestion_accepts_reversals_only_of_the_listed_source() -> None:
    traffic, _ = sample()
    given = {"contracts": list(CONTRACTS), "meters": DECLARED["meters"], "reversal": REVERSAL}
    sent = [record for record in traffic.records if REVERSAL_TYPE.encode() in record.value]
    validator = IngestionConfig.model_validate(given).validator()
    reasons = pl.DataFrame(validator.validate(records_of([record.value for record in sent])))["reason"].to_list()
    refused = ["unlisted_reversal" if record.kind == "unlisted_reversal" else None for record in sent]
    assert reasons == refused
    assert None in refused
    assert "unlisted_reversal" in refused


@pytest.mark.parametrize("sources", [(), ("others/*",)])
def test_a_stack_without_the_listed_source_gets_no_reversals(sources: tuple[str, ...]) -> None:
    traffic = run(7, policy=replace(POLICY, reversal_sources=sources))
    assert not any(record.kind in ("reversal", "credit", "unlisted_reversal") for record in traffic.records)
    assert {"whole", "in_part", "of_trace", "unlisted"} <= set(DECLARED_KINDS) & set(traffic.left_out)
    assert not replace(POLICY, reversal_sources=sources).may_reverse(desk_of("a run"))
