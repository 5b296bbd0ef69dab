"""Billing's decisions about one row, and what its configuration refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jobs.billing.config import BillingConfig
from jobs.billing.rules import following, grace, holds, policy
from jobs.joins.config import JoinsConfig
from jobs.runtime.batch_limits import BATCH_QUANTITIES, outcomes_at_once
from jobs.runtime.effective_rules import Rules
from jobs.runtime.postgres.sink import PostgresSink
from jobs.sessionization.config import SessionizationConfig
from metering.holding import Hold
from metering.meters import Meter
from metering.vocabulary import Decision, LatePolicy, Outcome
from metering.windows import MINUTE, Window
from tests.specifications.billing import decide, is_metered, is_unmetered

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = Window(START, START + MINUTE)
GRACE = timedelta(minutes=5)
MICROSECOND = timedelta(microseconds=1)


@pytest.mark.parametrize("decision", Decision)
def test_the_policy_decides_about_stragglers_only(decision: Decision) -> None:
    assert decide(WINDOW.end - MICROSECOND, WINDOW, GRACE, decision) is None
    assert decide(WINDOW.end + GRACE - MICROSECOND, WINDOW, GRACE, decision) is None
    assert decide(WINDOW.end + GRACE, WINDOW, GRACE, decision) is decision


@pytest.mark.parametrize(("quantity", "expected"), [(None, False), (0, False), (1, True), (10**12, True)])
def test_null_and_zero_count_nothing(quantity: int | None, *, expected: bool) -> None:
    assert is_metered(quantity) is expected


@pytest.mark.parametrize("outcome", Outcome)
def test_only_a_completion_that_came_can_leave_a_meter_out(outcome: Outcome) -> None:
    assert is_unmetered(outcome, None) is (outcome is Outcome.MATCHED)
    assert not is_unmetered(outcome, 0)


def test_a_meter_without_a_policy_corrects() -> None:
    assert BillingConfig().policies == dict.fromkeys(Meter, LatePolicy.CORRECT)
    policies = BillingConfig.model_validate({"late_policy": {"output_tokens": "drop"}}).policies
    assert policies == {**dict.fromkeys(Meter, LatePolicy.CORRECT), Meter.OUTPUT_TOKENS: LatePolicy.DROP}


def test_a_meter_has_a_grace_of_its_own_or_that_of_all() -> None:
    def meter(**own: int) -> dict[str, Any]:
        return {"unit": "answer", "count": "outcomes", **own}

    rules = BillingConfig.model_validate(
        {"meters": {"soon": meter(grace_seconds=60), "same": meter(grace_seconds=900), "any": meter()}}
    ).deciding
    assert [grace(rules).of(name) // timedelta(seconds=1) for name in ("soon", "same", "any", "gone")] == [
        *(60, 900, 900, 900)
    ]
    # So the rules of earlier releases are those of who declares none.
    assert BillingConfig().deciding.keys() == {"grace_seconds", "late_policy"}


GRACES = st.none() | st.integers(0, 7_200)
DECLARED = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.tuples(GRACES, st.sampled_from(LatePolicy)), min_size=1, max_size=3
)


@given(st.lists(st.tuples(st.integers(0, 7_200), DECLARED), min_size=1, max_size=5))
def test_a_removed_meter_keeps_its_late_policy(
    configured: list[tuple[int, dict[str, tuple[int | None, LatePolicy]]]],
) -> None:
    rules: Rules | None = None
    seconds: dict[str, int] = {}
    last: dict[str, tuple[int | None, LatePolicy]] = {}
    for grace_s, meters in configured:
        said = {
            name: {"unit": "call", "count": "outcomes", "grace_seconds": own, "late_policy": decision}
            for name, (own, decision) in meters.items()
        }
        hold = {"seconds": grace_s + 1}
        present = BillingConfig.model_validate({"meters": said, "grace_seconds": grace_s, "hold": hold}).deciding
        seconds |= dict.fromkeys(meters, grace_s + 1)
        rules = present if rules is None else following(rules, present)
        last |= meters
        for name, (own, decision) in last.items():
            assert policy(rules).of(name) is decision
            assert grace(rules).of(name) == timedelta(seconds=grace_s if own is None else own)
        waiting = {name: timedelta(seconds=seconds[name]) for name, (_, said) in last.items() if said == "hold"}
        assert {name: hold.time for name, hold in holds(rules).items()} == waiting
    assert rules is not None
    assert following(rules, rules) == rules


def test_a_meters_own_policy_equals_the_one_in_billings_configuration() -> None:
    seconds = {"unit": "second", "sum": "gpu_seconds"}
    own = BillingConfig.model_validate({"meters": {"gpu_seconds": {**seconds, "late_policy": "drop"}}})
    told = BillingConfig.model_validate({"meters": {"gpu_seconds": seconds}, "late_policy": {"gpu_seconds": "drop"}})
    assert own.policies == told.policies == {"gpu_seconds": LatePolicy.DROP}
    assert own.deciding == told.deciding
    with pytest.raises(ValidationError, match=r"is correct, but .* is drop; leave one out"):
        BillingConfig.model_validate(
            {"meters": {"gpu_seconds": {**seconds, "late_policy": "drop"}}, "late_policy": {"gpu_seconds": "correct"}}
        )


def test_a_meters_own_hold_wins_over_the_general_one() -> None:
    call = {"unit": "call", "count": "outcomes"}
    meters = {"a": {**call, "late_policy": "hold", "hold": {"above_amount": 0.1}}, "b": {**call, "late_policy": "hold"}}
    config = BillingConfig.model_validate({"meters": meters, "hold": {"seconds": 60, "expires": "correct"}})
    found = holds(config.deciding)
    assert found["a"] == Hold(timedelta(days=7), Decision.DROP, above_amount=Decimal("0.1"))
    assert found["b"] == Hold(timedelta(seconds=60), Decision.CORRECT)
    for other in (None, "correct", "drop"):
        with pytest.raises(ValidationError, match=r"meters\.a\.hold is given, but its late_policy is"):
            BillingConfig.model_validate({"meters": {"a": {**call, "late_policy": other, "hold": {}}}})


LIMITS = [Decimal(limit) for limit in (1, 5, 7)]
AMOUNTS = st.none() | st.sampled_from([*LIMITS, *(-limit for limit in LIMITS)]) | st.decimals(-10, 10, places=3)
"""Often just a limit, which is not above it."""
AGES = st.integers(0, 10).map(lambda seconds: timedelta(seconds=seconds))


@given(AMOUNTS, AGES)
def test_without_limits_all_stragglers_are_held_and_otherwise_those_above_one(
    amount: Decimal | None, age: timedelta
) -> None:
    def waits(above_amount: int | None = None, above_age: int | None = None) -> bool:
        of_age = None if above_age is None else timedelta(seconds=above_age)
        limit = None if above_amount is None else Decimal(above_amount)
        return Hold(GRACE, Decision.DROP, limit, of_age).holds(amount, age)

    assert waits()
    assert waits(above_amount=5) == (amount is None or not -5 <= amount <= 5)
    assert waits(above_age=5) == (age > timedelta(seconds=5))
    assert waits(5, 5) == (waits(above_amount=5) or waits(above_age=5))


@given(AMOUNTS, AGES, st.sampled_from([None, "EUR", "JPY", "USD"]), st.sampled_from([None, 7]), st.booleans())
def test_an_amount_is_compared_with_that_of_its_currency_and_one_without_any_waits(
    amount: Decimal | None, age: timedelta, currency: str | None, others: int | None, has_age: bool
) -> None:
    limits = {"EUR": Decimal(1), "JPY": Decimal(5)}
    of_age, of_others = (timedelta(seconds=5) if has_age else None), (None if others is None else Decimal(others))
    found = Hold(GRACE, Decision.DROP, of_others, of_age, limits).holds(amount, age, currency)
    above = limits.get(currency or "", of_others)
    is_large = above is None or amount is None or abs(amount) > above
    assert found == (is_large or (of_age is not None and age > of_age))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("grace_seconds", -1),
        ("grace_seconds", 2_678_401),
        ("grace_seconds", 0.5),
        ("grace_seconds", "soon"),
        ("grace_seconds", None),
        ("late_policy", {"requests": "keep"}),
        ("late_policy", {"tokens": "drop"}),
        ("late_policy", "drop"),
        ("late_policies", {}),
        ("late_policy", {"requests": "approve"}),
        ("hold", {"seconds": 0}),
        ("hold", {"above_amount": -1}),
        ("hold", {"above_amount": "0.0000000000000000001"}),
        ("hold", {"above_amount": "NaN"}),
        ("hold", {"above_amount_by_currency": {}}),
        ("hold", {"above_amount_by_currency": {"eur": 1}}),
        ("hold", {"above_amount_by_currency": {"EUR": -1}}),
        ("hold", {"above_age_seconds": 31_622_401}),
        ("hold", {"expires": "approve"}),
        ("publish", ["events"]),
        ("publish", ["windows", "windows"]),
        ("publish", "windows"),
        ("publish_every_seconds", 0),
    ],
)
def test_a_wrong_billing_value_is_refused_with_its_field(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        BillingConfig.model_validate({field: value})


@pytest.mark.parametrize("value", [0, -1, 86_401, 1.5, "long", None])
def test_a_wrong_session_gap_is_refused_with_its_field(value: Any) -> None:
    with pytest.raises(ValidationError, match="session_gap_seconds"):
        SessionizationConfig.model_validate({"session_gap_seconds": value})


@pytest.mark.parametrize("count", [1, 4, 20, 50])
def test_more_meters_are_fewer_rows_at_once_because_each_row_may_have_all(count: int) -> None:
    meters = {f"m{number}": {"unit": "call", "count": "outcomes"} for number in range(count)}
    at_once = JoinsConfig.model_validate({"meters": meters}).rows_at_once
    assert at_once * count <= BATCH_QUANTITIES
    assert at_once == min(200_000, 400_000 // count)
    assert JoinsConfig.model_validate({"meters": meters, "max_records_per_batch": 7}).rows_at_once == 7
    assert outcomes_at_once(100) == outcomes_at_once(50), "no row has more than fifty"


@pytest.mark.parametrize("name", [LatePolicy.DROP, LatePolicy.HOLD])
def test_an_undeclared_part_of_the_tokens_follows_its_whole_when_it_is_late(name: LatePolicy) -> None:
    """Else the input of a late event is dropped, and the audio in it is billed."""
    late = BillingConfig(late_policy={Meter.INPUT_TOKENS: name}).deciding
    of_input = ("audio_input_tokens", "cache_write_tokens", "image_input_tokens")
    assert [policy(late).of(part) for part in of_input] == [name] * 3
    assert policy(late).of("reasoning_tokens") is LatePolicy.CORRECT
    assert set(holds(late)) == ({Meter.INPUT_TOKENS, *of_input} if name is LatePolicy.HOLD else set())
    again = following(late, BillingConfig().deciding)
    assert {policy(again).of(part) for part in of_input} == {LatePolicy.CORRECT}, "what is taken back holds no more"


def test_a_part_that_is_declared_has_its_own_late_policy() -> None:
    tokens = {name: {"unit": "token", "sum": name} for name in ("input_tokens", "audio_input_tokens")}
    meters = {"input_tokens": tokens["input_tokens"] | {"late_policy": "hold"}}
    meters |= {"audio_input_tokens": tokens["audio_input_tokens"] | {"within": "input_tokens"}}
    declared = BillingConfig.model_validate({"meters": meters}).deciding
    assert policy(declared).of("audio_input_tokens") is LatePolicy.CORRECT
    assert "audio_input_tokens" not in holds(declared)


@pytest.mark.parametrize(
    ("settings", "configured", "rows"),
    [
        ({"spark.master": "local[1]"}, None, None),
        ({"spark.master": "local"}, None, None),
        ({"spark.master": "local[1]"}, 7, 7),
        ({"spark.master": "k8s://https://kubernetes"}, None, 50_000),
        ({"spark.master": "k8s://https://kubernetes"}, 7, 7),
        ({"spark.master": "k8s://https://kubernetes"}, 1_000_000, 100_000),
        ({"spark.master": "k8s://https://kubernetes", "spark.kubernetes.driver.master": "local[1]"}, None, None),
    ],
)
def test_without_executors_the_driver_adds_up_all_and_with_them_50_000_rows(
    settings: dict[str, str], configured: int | None, rows: int | None
) -> None:
    """And never more than fit it. The last one is the driver's pod of an application without executors."""
    spark = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: settings))
    context: Any = SimpleNamespace(spark=spark, config=BillingConfig(driver_rows=configured))
    assert PostgresSink._driver_rows(context, 100_000) == rows
