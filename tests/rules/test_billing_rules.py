"""Billing's decisions about one row, and what its configuration refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from jobs.billing.config import BillingConfig
from jobs.sessionization.config import SessionizationConfig
from metering.meters import Meter
from metering.windows import MINUTE, Window
from metering.words import Decision, Outcome
from tests.specifications.billing import decide, is_metered, is_unmetered

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = Window(START, START + MINUTE)
GRACE = timedelta(minutes=5)
MICROSECOND = timedelta(microseconds=1)


@pytest.mark.parametrize("policy", Decision)
def test_the_policy_decides_about_stragglers_only(policy: Decision) -> None:
    assert decide(WINDOW.end - MICROSECOND, WINDOW, GRACE, policy) is None
    assert decide(WINDOW.end + GRACE - MICROSECOND, WINDOW, GRACE, policy) is None
    assert decide(WINDOW.end + GRACE, WINDOW, GRACE, policy) is policy


@pytest.mark.parametrize(("quantity", "expected"), [(None, False), (0, False), (1, True), (10**12, True)])
def test_null_and_zero_count_nothing(quantity: int | None, *, expected: bool) -> None:
    assert is_metered(quantity) is expected


@pytest.mark.parametrize("outcome", Outcome)
def test_only_a_completion_that_came_can_leave_a_meter_out(outcome: Outcome) -> None:
    assert is_unmetered(outcome, None) is (outcome is Outcome.MATCHED)
    assert not is_unmetered(outcome, 0)


def test_a_meter_without_a_policy_corrects() -> None:
    assert BillingConfig().policies == dict.fromkeys(Meter, Decision.CORRECT)
    policies = BillingConfig.model_validate({"late_policy": {"output_tokens": "drop"}}).policies
    assert policies == {**dict.fromkeys(Meter, Decision.CORRECT), Meter.OUTPUT_TOKENS: Decision.DROP}


def test_all_meters_have_one_grace() -> None:
    answers = {"unit": "answer", "count": "outcomes", "grace_seconds": 60}
    with pytest.raises(ValidationError, match=r"meters.answers.grace_seconds is 60, but grace_seconds is 900"):
        BillingConfig.model_validate({"meters": {"answers": answers}})
    assert BillingConfig.model_validate({"meters": {"answers": answers}, "grace_seconds": 60}).grace_seconds == 60


def test_a_meters_own_policy_is_the_same_as_one_that_billing_is_told() -> None:
    seconds = {"unit": "second", "sum": "gpu_seconds"}
    own = BillingConfig.model_validate({"meters": {"gpu_seconds": {**seconds, "late_policy": "drop"}}})
    told = BillingConfig.model_validate({"meters": {"gpu_seconds": seconds}, "late_policy": {"gpu_seconds": "drop"}})
    assert own.policies == told.policies == {"gpu_seconds": Decision.DROP}
    assert own.deciding == told.deciding
    with pytest.raises(ValidationError, match=r"is correct, but .* is drop; leave one out"):
        BillingConfig.model_validate(
            {"meters": {"gpu_seconds": {**seconds, "late_policy": "drop"}}, "late_policy": {"gpu_seconds": "correct"}}
        )


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
    ],
)
def test_a_wrong_billing_value_is_refused_with_its_field(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        BillingConfig.model_validate({field: value})


@pytest.mark.parametrize("value", [0, -1, 86_401, 1.5, "long", None])
def test_a_wrong_session_gap_is_refused_with_its_field(value: Any) -> None:
    with pytest.raises(ValidationError, match="session_gap_seconds"):
        SessionizationConfig.model_validate({"session_gap_seconds": value})
