"""Generated traffic: the same seed gives the same bytes, and the truth agrees with the bytes, read from outside."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.compare import undecided_seconds
from metering.joining import Side
from metering.ranking import Received, ranked
from traffic.declared import CONTRACTS, DECLARED, REVERSAL
from traffic.generate import Traffic, begin, catalog_of, generate
from traffic.instants import rfc3339
from traffic.names import UNPRICED_NAME
from traffic.placement import Placement, Policy, UnplaceableError
from traffic.truth import digest, truth_of

START_MS = 1_795_000_000_000
POLICY = Policy.of(
    {
        "ingestion": {
            "clocks": {"device": ["device/*"]},
            "exact_horizon_seconds": 5,
            "contracts": list(CONTRACTS),
            "reversal": REVERSAL,
        },
        "joins": {**DECLARED, "best_report_bills": True},
        "billing": {"late_policy": {"cached_tokens": "drop"}},
    }
)
DECLARED_KINDS = (
    *("trace", "straggling_trace", "repeated_trace", "broken_trace", "tokens_alone", "straggling_tokens"),
    *("whole", "in_part", "of_two_reports", "of_straggler", "of_abandoned", "of_trace", "of_nobody", "unlisted"),
    *("day", "repeated", "straggling", "at_the_hour", "taken_back", "at_one_instant", "at_a_band"),
)
EXAMPLES = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])

seeds = st.integers(0, 10_000)
starts = st.integers(START_MS, START_MS + 40 * 86_400_000)
sizes = st.integers(350, 1_500)


def run(
    seed: int, records: int = 600, start_ms: int = START_MS, policy: Policy = POLICY, rate: float = 1_500
) -> Traffic:
    placement = Placement(policy)
    catalog = catalog_of(seed, start_ms - 42_345, policy.priced, knows_attributes=policy.knows_attributes)
    beginning = begin(seed=seed, start_ms=start_ms - 40_000, records=records, placement=placement, catalog=catalog)
    return generate(
        seed=seed,
        start_ms=start_ms,
        records=records,
        placement=placement,
        catalog=catalog,
        beginning=beginning,
        rate=rate,
    )


def documents(traffic: Traffic) -> list[tuple[int, dict[str, Any]]]:
    """(planned sending, document) of every valid record that is not a copy, in the order of sending."""
    return [(r.send_at_ms, json.loads(r.value)) for r in traffic.records if r.disposition == "accepted"]


def milliseconds(text: str) -> int:
    at = datetime.fromisoformat(text)
    return int(at.timestamp()) * 1000 + at.microsecond // 1000


@lru_cache(maxsize=1)
def large() -> tuple[Traffic, dict[str, Any]]:
    traffic = run(7, records=20_000)
    return traffic, truth_of(traffic)


@EXAMPLES
@given(seeds, sizes, starts)
def test_the_same_seed_gives_the_same_bytes_and_the_same_truth(seed: int, records: int, start_ms: int) -> None:
    first, second = run(seed, records, start_ms), run(seed, records, start_ms)
    assert [(r.send_at_ms, r.key, r.value) for r in first.records] == [
        (r.send_at_ms, r.key, r.value) for r in second.records
    ]
    assert truth_of(first) == truth_of(second)


def test_another_seed_gives_other_traffic() -> None:
    assert [r.value for r in run(1).records] != [r.value for r in run(2).records]


@EXAMPLES
@given(seeds, sizes)
def test_every_requested_record_is_once_in_the_truth(seed: int, records: int) -> None:
    traffic = run(seed, records)
    truth = truth_of(traffic)
    assert len(traffic.records) == len(truth["records"]) == records
    assert [record["digest"] for record in truth["records"]] == [digest(r.value) for r in traffic.records]
    assert sum(truth["kinds"].values()) == records
    assert all((r["reason"] is not None) == (r["disposition"] == "rejected") for r in truth["records"])


@EXAMPLES
@given(seeds)
def test_a_repeat_comes_after_its_first_in_the_same_partition_and_names_its_kind(seed: int) -> None:
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    for record in run(seed).records:
        if record.source is None or record.id is None:
            continue
        document = json.loads(record.value)
        content = {name: document.get(name) for name in ("type", "subject", "time", "data")}
        first = seen.setdefault((record.source, record.id), content)
        if first is content:
            assert record.disposition in ("accepted", "rejected")
        else:
            assert record.disposition == ("duplicate" if first == content else "conflict")
        assert record.key == (document["subject"].encode() if "subject" in document else None)


def test_repeats_come_beside_their_first_within_the_exact_horizon_and_beyond_it() -> None:
    traffic, _ = large()
    exact_ms = traffic.placement.policy.exact_horizon_seconds * 1000
    first: dict[tuple[str, str], int] = {}
    after: dict[str, list[int]] = defaultdict(list)
    ages: set[int] = set()
    for record in traffic.records:
        if record.source is None or record.id is None:
            continue
        sent_ms = first.setdefault((record.source, record.id), record.send_at_ms)
        after[record.kind].append(record.send_at_ms - sent_ms)
        if record.kind == "repeat_of_long_ago" and record.time is not None:
            ages.add((record.send_at_ms - milliseconds(record.time)) // 3_600_000)
    assert ages == {2, 30}
    assert min(after["repeat_of_long_ago"]) <= 20
    assert max(after["repeat_of_long_ago"]) > exact_ms
    for kind in ("repeat_beyond_horizon", "conflict_beyond_horizon"):
        assert min(after[kind]) > exact_ms


def test_every_accepted_request_and_completion_is_in_exactly_one_outcome() -> None:
    traffic, truth = large()
    parts: dict[tuple[str, str], list[str]] = defaultdict(list)
    quantities: Counter[str] = Counter()
    for _, document in documents(traffic):
        kind = document["type"].split(".")[2]
        if kind in ("request", "completion", "usage"):
            parts[document["subject"], document["data"]["request_id"]].append(kind)
        for number, _ in enumerate(document["data"].get("calls", ()), 1):
            parts[document["subject"], f"{document['data']['request_id']}/{number}"].append("usage")
        quantities[document.get("subject", "")] += kind == "tokens"
    outcomes: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for outcome in truth["outcomes"]:
        outcomes[outcome["account"], outcome["request_id"]][outcome["outcome"]] += 1
    for account, count in (+quantities).items():
        assert outcomes.pop((account, "quantity")) == Counter(matched=count)
    for key, found in parts.items():
        each = Counter(found)
        is_whole = bool(each["usage"] or (each["request"] and each["completion"]))
        decided = 2 if is_whole and (each["request"] or each["completion"]) else 1
        assert outcomes.pop(key) == +Counter(
            matched=int(is_whole),
            abandoned=int(not is_whole and each["request"] > 0),
            orphaned=int(not is_whole and each["completion"] > 0),
            superseded=len(found) - decided,
        )
    assert not outcomes


def test_totals_and_dropped_stragglers_are_all_that_was_reported_and_amounts_are_exact() -> None:
    traffic, truth = large()
    policy = traffic.placement.policy
    expected: dict[str, Decimal] = defaultdict(Decimal)
    for outcome in truth["outcomes"]:
        for meter, quantity in outcome["quantities"].items():
            expected[meter] += Decimal(quantity or 0)
    counted: dict[str, Decimal] = defaultdict(Decimal)
    accounts = {*traffic.catalog.accounts, traffic.catalog.unknown_account}
    elsewhere = set()
    for total in truth["totals"]:
        quantity = Decimal(total["quantity"])
        counted[total["meter"]] += quantity
        amount = Decimal(total["amount"])
        assert amount == amount.quantize(Decimal("1e-18" if total["meter"] == "gpu_seconds" else "1e-10"))
        assert quantity > 0
        is_late = total["account"] not in accounts or str(total["model"]).startswith("late-")
        is_unknown = total["account"] == traffic.catalog.unknown_account
        is_unpriced = is_unknown or total["model"] in ("aurora-preview", UNPRICED_NAME, None)
        if is_late:  # see test_traffic_late
            is_unknown, is_unpriced = total["currency"] is None, total["price_from"] is None
        if total["unit_price"] == "0" and total["price_from"] is None:
            # Another meter bills it.
            elsewhere.add((total["meter"], is_unpriced))
            assert amount == 0
            continue
        assert is_unpriced == (total["price_from"] is None) == (total["unit_price"] is None)
        assert amount == (0 if is_unpriced else quantity * Decimal(total["unit_price"]))
        assert is_unknown == (total["currency"] is None)
    for straggler in truth["stragglers"]:
        assert straggler["decision"] == policy.late_policy.get(straggler["meter"], "correct")
        if straggler["decision"] == "drop":
            counted[straggler["meter"]] += Decimal(straggler["quantity"])
    assert counted == expected
    # Parts with a price leave the whole, and only those without one are billed by it.
    assert {("input_tokens", False), ("output_tokens", False), ("cached_tokens", True)} <= elsewhere
    assert not elsewhere & {("cached_tokens", False), ("reasoning_tokens", False)}


def test_a_price_is_the_one_in_force_at_the_event() -> None:
    catalog = catalog_of(3, START_MS)
    changed = [a for a in catalog.accounts.values() if len(a.contracts) == 2]
    assert {tuple(c.currency for c in a.contracts) for a in changed} > {("USD", "EUR"), ("USD", "USD")}
    for account in changed:
        old, new = account.contracts
        assert account.contract_at(0) == account.contract_at(new.effective_from_ms - 1) == old
        assert account.contract_at(new.effective_from_ms) == new
        assert (old.plan == new.plan) == (old.currency != new.currency)
        hot = [p for p in catalog.prices if p.model == "aurora-nano" and p.plan == new.plan and p.meter == "requests"]
        first, second = (p for p in hot if p.currency == new.currency)
        paid = [catalog.price(account.account, "aurora-nano", "requests", second.effective_from_ms - d) for d in (1, 0)]
        assert paid == [first, second]
        assert catalog.price(account.account, "aurora-preview", "requests", START_MS) is None
        assert catalog.price(account.account, None, "input_tokens", START_MS) is None
    assert catalog.price(catalog.unknown_account, "aurora-nano", "requests", START_MS) is None


def test_the_second_file_backdates_and_corrects_prices() -> None:
    catalog = catalog_of(3, START_MS)
    first, second = (
        {
            (p["plan"], p["model"], p["meter"], p["currency"], p["effective_from"]): Decimal(p["unit_price"])
            for p in file["prices"]
        }
        for file in catalog.files()
    )
    assert {**first, **second} == {
        (p.plan, p.model, p.meter, p.currency, rfc3339(p.effective_from_ms)): p.unit_price for p in catalog.prices
    }
    assert first.keys() & second.keys()
    assert all(first[key] != second[key] for key in first.keys() & second.keys())
    backdated = second.keys() - first.keys()
    assert backdated
    for plan, model, meter, currency, since in backdated:
        assert max(key[4] for key in first if key[:4] == (plan, model, meter, currency)) > since


def test_every_kind_of_trouble_happens() -> None:
    _, truth = large()
    kinds = truth["kinds"]
    for kind in (
        *("exact_duplicate", "resent_duplicate", "conflict", "out_of_order", "late", "straggler", "old", "early"),
        *("future", "too_old", "device_clock", "abandoned", "orphaned", "superseded_request", "null_tokens"),
        *("superseded_completion", "superseded_usage", "unpriced_model", "unknown_type", "quiet_source"),
        *("repeat_of_long_ago", "repeat_beyond_horizon", "conflict_beyond_horizon", "device_repeat"),
        *("before_late_catalog", "after_late_catalog"),
        *("border_minute", "border_change", "border_month"),
        *("unknown_account", "usage_completes_request", "usage_after_completion"),
        *("failed", "retried", "streamed"),
        *("trace", "straggling_trace", "repeated_trace", "reordered_trace", "broken_trace"),
        *("tokens_alone", "tokens_again", "straggling_tokens"),
        *("named", "at_a_band"),
        *("reversed", "reversed_trace", "reversal", "credit"),
        *("reversal_again", "reversal_otherwise", "unlisted_reversal"),
        *("border_day", "answers", "straggling_answers", "answers_at_the_hour", "reversed_answers", "at_one_instant"),
    ):
        assert kinds[kind] > 0
    assert sum(kind.startswith("malformed_") for kind in kinds) >= 30
    assert not truth["left_out"]
    assert {s["decision"] for s in truth["stragglers"]} == {"correct", "drop"}
    assert {total["corrected"] for total in truth["totals"]} == {True, False}
    assert all(user["sessions"] for user in truth["sessions"])
    assert any(len(user["sessions"]) > 1 for user in truth["sessions"])
    bounds = [session["start"] is None for user in truth["sessions"] for session in user["sessions"]]
    assert 0 < sum(bounds) < len(bounds) / 2


def test_an_outage_that_bunches_records_leaves_the_request_that_a_completion_answers() -> None:
    """All from the completion on are received at one instant, as after an outage."""
    traffic, _ = large()
    times = {document["id"]: milliseconds(document["time"]) for _, document in documents(traffic)}
    contested = [name for name in times if name.endswith(".q2") and f"{name.removesuffix('.q2')}.c" in times]
    assert contested
    for again in contested:
        sides = {"q": (0, Side.REQUEST), "c": (1, Side.COMPLETION), "q2": (1, Side.REQUEST)}
        call = again.removesuffix(".q2")
        rows = [
            Received(lsn, side, received, times[f"{call}.{part}"], part.encode())
            for lsn, (part, (received, side)) in enumerate(sides.items(), 1)
        ]
        assert [(one.request, one.completion) for one in ranked(rows, lambda _: 10)] == [(1, 2)], call


def test_borders_are_met_exactly_and_missed_by_a_microsecond() -> None:
    traffic, truth = large()
    days = {(o["account"], o["request_id"]): o["day"] for o in truth["outcomes"]}
    seen: set[tuple[str, bool]] = set()
    for record in traffic.records:
        if not record.kind.startswith("border_") or b".request.v1" in record.value:
            continue
        event = json.loads(record.value)
        account, at = traffic.catalog.accounts[event["subject"]], datetime.fromisoformat(event["time"])
        is_before = at.microsecond == 999_999 or at.microsecond % 1_000 == 999
        border = (at + timedelta(microseconds=is_before)).astimezone(ZoneInfo(account.timezone))
        if record.kind == "border_minute":
            assert (border.second, border.microsecond) == (0, 0)
        elif record.kind == "border_change":
            of_contract = {contract.effective_from_ms for contract in account.contracts}
            of_price = {price.effective_from_ms for price in traffic.catalog.prices}
            of_price |= {alias.effective_from_ms for alias in traffic.catalog.aliases}
            border_ms = milliseconds(border.isoformat())
            assert border_ms in of_contract | of_price
            seen |= {("contract", is_before)} if border_ms in of_contract else set()
        else:
            assert (border.hour, border.minute, border.second, border.microsecond) == (0, 0, 0, 0)
            day = days[event["subject"], event["data"]["request_id"]]
            assert day == at.astimezone(border.tzinfo).date().isoformat()
            assert (day == border.date().isoformat()) != is_before
            assert record.kind == "border_day" or border.day == 1
        seen.add((record.kind, is_before))
    kinds = ("border_minute", "border_change", "border_month", "border_day", "contract")
    assert seen == {(kind, is_before) for kind in kinds for is_before in (True, False)}


def test_many_users_call_and_a_few_accounts_and_models_most() -> None:
    traffic, truth = large()
    assert len(truth["sessions"]) > 1_000
    calls = Counter(outcome.account for outcome in traffic.outcomes)
    models = Counter(outcome.model for outcome in traffic.outcomes)
    assert len(calls) == 24 + 1 + 6
    assert len(models) > 25
    assert calls.most_common(1)[0][1] > 5 * sorted(calls.values())[len(calls) // 2]


def test_trouble_with_an_uncertain_bill_is_left_out_and_reported() -> None:
    truth = truth_of(run(1, policy=Policy()))
    assert truth["left_out"] == ["beyond_the_exact_horizon", "device", *DECLARED_KINDS]
    assert "device_clock" not in truth["kinds"]
    first_counts = replace(POLICY, best_report_bills=False)
    assert truth_of(run(1, policy=first_counts))["left_out"] == ["failed", "retried", "streamed"]


@pytest.mark.parametrize(
    ("policy", "records"),
    [
        (Policy(grace_seconds=120), 500),
        (Policy(completion_timeout_seconds=30), 500),
        (Policy(completion_timeouts={"aurora-nano": 100}), 500),
        (Policy(completion_timeouts={"of others": 250}), 500),
        (Policy(accept_future_seconds=10), 500),
        (Policy(dedupe_horizon_seconds=60), 500),
        (Policy(), 50),
    ],
)
def test_a_stack_or_a_number_that_leaves_no_room_is_refused(policy: Policy, records: int) -> None:
    with pytest.raises(UnplaceableError):
        truth_of(run(1, records, policy=policy))


def test_what_is_compared_may_wait_for_its_other_part_first() -> None:
    traffic = run(1, policy=Policy(completion_timeout_seconds=110, completion_timeouts={"aurora-nano": 150}))
    truth = truth_of(traffic)
    last_sent = max(record.send_at_ms for record in traffic.records) / 1000
    assert undecided_seconds(truth, last_sent) == 150
    assert undecided_seconds(truth, last_sent + 140) == pytest.approx(10)
    assert undecided_seconds(truth, last_sent + 151) == 0
