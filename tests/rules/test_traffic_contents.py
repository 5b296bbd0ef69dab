"""What the truth says of contents that are answered several times: live each answer counts, and after an audit one."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from random import Random
from typing import Any

import pytest

from jobs.settings.meters import MeterConfig
from tests.rules.test_traffic_truth import POLICY, documents, run
from traffic.bills import Bill, Line
from traffic.catalog import Price
from traffic.generate import Traffic
from traffic.instants import EPOCH
from traffic.meters import CONTENT, Meter
from traffic.once_per import counted_once
from traffic.placement import Policy, UnplaceableError
from traffic.script import Outcome, TakenBack
from traffic.truth import Truth, truth_of

HOUR = timedelta(hours=1)
Key = tuple[str, str]


@lru_cache(maxsize=1)
def sample() -> tuple[Traffic, Truth]:
    traffic = run(7, records=4_000)
    return traffic, truth_of(traffic)


def answers(traffic: Traffic) -> dict[tuple[str, str, int], list[tuple[datetime, str]]]:
    """By account, content and hour when which request was answered, from the bytes."""
    found: dict[tuple[str, str, int], list[tuple[datetime, str]]] = defaultdict(list)
    for _, document in documents(traffic):
        if (content := document["data"].get(CONTENT)) is not None:
            at = datetime.fromisoformat(document["time"])
            found[document["subject"], content, (at - EPOCH) // HOUR].append((at, document["data"]["request_id"]))
    return found


def taken_from(traffic: Traffic, meter: str) -> set[Key]:
    """Of which requests nothing of a meter is left that counts one each."""
    taken: dict[Key, Decimal] = defaultdict(Decimal)
    for each in traffic.taken_back:
        if each.meter in (None, meter):
            taken[each.account, each.request_id] += 1 if each.quantity is None else each.quantity
    return {key for key, quantity in taken.items() if quantity >= 1}


def numbers(quantities: dict[str, str | None]) -> dict[str, Decimal | None]:
    """Of each meter how much; None: not reported."""
    return {meter: units and Decimal(units) for meter, units in quantities.items()}  # type: ignore[misc]


def test_oracle_of_each_content_the_first_that_is_left_counts_in_each_hour() -> None:
    traffic, truth = sample()
    gone, uncounted = taken_from(traffic, "answers"), set()
    for (account, _, _), found in answers(traffic).items():
        left = sorted((at, request) for at, request in found if (account, request) not in gone)
        uncounted |= {(account, request) for _, request in left[1:]}
    taken = {(each.account, each.request_id) for each in traffic.taken_back}
    without = {
        (o["account"], o["request_id"])
        for o in truth["outcomes"]
        if o.get("left") is not None and numbers(o["quantities"])["answers"] != numbers(o["left"])["answers"]
    }
    assert {key for key in without if key not in taken} == uncounted - taken
    assert len(uncounted) > 20
    assert uncounted <= without
    for outcome in truth["outcomes"]:
        if (outcome["account"], outcome["request_id"]) in uncounted - taken:
            assert numbers(outcome["left"]) == {**numbers(outcome["quantities"]), "answers": 0}


def test_live_counts_each_answer_and_an_audit_fewer_by_those_that_are_not_the_first() -> None:
    traffic, _ = sample()
    alone = replace(traffic, taken_back=(), outcomes=[o for o in traffic.outcomes if o.knows_late])
    truth = truth_of(alone)
    live, standing = (
        sum(Decimal(total["quantity"]) for total in totals if total["meter"] == "answers")
        for totals in (truth["totals"], truth["audited"]["totals"])
    )
    found = answers(traffic)
    assert live - standing == sum(len(each) - 1 for each in found.values()) > 20
    others = [
        [t for t in totals if t["meter"] != "answers"] for totals in (truth["totals"], truth["audited"]["totals"])
    ]
    # Whether a window was closed when it was corrected depends on when that is.
    assert [{**t, "corrected": None} for t in others[0]] == [{**t, "corrected": None} for t in others[1]]
    kept = [{s["meter"] for s in stragglers} for stragglers in (truth["stragglers"], truth["audited"]["stragglers"])]
    assert kept[0] == kept[1]
    assert len(truth["stragglers"]) > len(truth["audited"]["stragglers"])


def test_no_two_answers_of_a_content_are_at_one_instant_and_some_are_where_an_hour_begins() -> None:
    traffic, _ = sample()
    found = answers(traffic)
    for each in found.values():
        assert len({at for at, _ in each}) == len(each)
    instants = [at for each in found.values() for at, _ in each]
    assert any(at == at.replace(minute=0, second=0, microsecond=0) for at in instants)
    assert any((at.minute, at.second, at.microsecond) == (59, 59, 999_999) for at in instants)
    hours = Counter((account, content) for account, content, _ in found)
    assert set(hours.values()) >= {1, 2}
    accounts = Counter(content for _, content in hours)
    assert set(accounts.values()) >= {1, 2}


def test_the_first_answer_is_sent_first_or_later_on_time_or_late_and_is_taken_back_or_not() -> None:
    traffic, _ = sample()
    sent = {(o.account, o.request_id): o.decided_ms for o in traffic.outcomes}
    taken = {(each.account, each.request_id) for each in traffic.taken_back}
    orders, is_taken = set(), set()
    for (account, _, _), found in answers(traffic).items():
        if len(found) > 1:
            (_, first), *others = sorted(found)
            orders |= {sent[account, first] < sent[account, request] for _, request in others}
            is_taken.add((account, first) in taken)
    assert orders == is_taken == {True, False}


METER = Meter("answers", once_per=(CONTENT, 3_600))


def outcome(request_id: str, event_ms: int, content: str | None, account: str = "a") -> Outcome:
    texts = {} if content is None else {CONTENT: content}
    return Outcome(account, request_id, "matched", "m", event_ms, event_ms, {}, texts, knows_late=True)


def counting(bills: list[tuple[Outcome, Bill]]) -> list[str]:
    return [
        o.request_id for o, bill in counted_once([METER], bills) if any(line.meter == "answers" for line in bill.lines)
    ]


ONE = Bill(
    "EUR", (Line("answers", 1, 0, None), Line("requests", 1, 0, Price("p", "m", "requests", "EUR", 0, Decimal(1))))
)
NONE = Bill("EUR", (ONE.lines[1],))


def test_windows_are_aligned_to_the_epoch_and_of_one_account_and_content() -> None:
    bills = [
        (outcome("late", 7_199_999, "x"), ONE),
        (outcome("first", 3_600_000, "x"), ONE),
        (outcome("other window", 7_200_000, "x"), ONE),
        (outcome("other content", 3_600_001, "y"), ONE),
        (outcome("other account", 3_600_001, "x", account="b"), ONE),
        (outcome("no content", 3_600_001, None), ONE),
        (outcome("no content either", 3_600_001, None), ONE),
    ]
    assert counting(bills) == [o.request_id for o, _ in bills if o.request_id != "late"]
    Random(5).shuffle(bills)
    assert "late" not in counting(bills)
    assert [bill for o, bill in counted_once([METER], bills) if o.request_id == "late"] == [NONE]


def test_what_bills_nothing_of_the_meter_does_not_compete() -> None:
    assert counting([(outcome("first", 0, "x"), NONE), (outcome("second", 1, "x"), ONE)]) == ["second"]
    half = Bill("EUR", (Line("answers", Decimal("0.5"), 0, None),))
    assert counting([(outcome("first", 0, "x"), half), (outcome("second", 1, "x"), ONE)]) == ["first"]
    elsewhere = Bill("EUR", (Line("answers", 0, 1, None),))
    assert counting([(outcome("first", 0, "x"), elsewhere), (outcome("second", 1, "x"), ONE)]) == ["first", "second"]


def test_which_is_first_of_two_at_one_instant_is_not_certain() -> None:
    with pytest.raises(UnplaceableError, match="occur at"):
        counting([(outcome("one", 0, "x"), ONE), (outcome("other", 0, "x"), ONE)])
    assert counting([(outcome("first", 0, "x"), ONE), *((outcome(n, 1, "x"), ONE) for n in "ab")]) == ["first"]


def test_a_reversal_of_the_first_makes_the_next_one_count() -> None:
    traffic, _ = sample()
    (account, _, _), found = next(item for item in answers(traffic).items() if len(item[1]) > 2)
    (_, first), (_, second), (_, third), *_ = sorted(found)

    def left(*taken: TakenBack) -> list[Any]:
        truth = truth_of(replace(traffic, taken_back=taken))
        of = {o["request_id"]: o.get("left", o["quantities"]) for o in truth["outcomes"] if o["account"] == account}
        return [of[request] and numbers(of[request])["answers"] for request in (first, second, third)]

    assert left() == [1, 0, 0]
    assert left(TakenBack(account, first, None, None)) == [None, 1, 0]
    assert left(TakenBack(account, first, "answers", None)) == [0, 1, 0]
    assert left(TakenBack(account, first, "answers", Decimal("0.5"))) == [Decimal("0.5"), 0, 0]
    assert left(TakenBack(account, second, None, None)) == [1, None, 0]
    assert left(TakenBack(account, first, "requests", None)) == [1, 0, 0]


@pytest.mark.parametrize(
    ("within", "seconds"), [("PT1H", 3_600), ("P1D", 86_400), ("PT10M", 600), ("PT1H1M1S", 3_661), ("PT1S", 1)]
)
def test_differential_a_duration_is_as_long_as_the_applications_say(within: str, seconds: int) -> None:
    document = {"unit": "answer", "count": "outcomes", "once_per": {"column": CONTENT, "within": within}}
    rule = MeterConfig.model_validate(document).declaration("answers").once_per
    assert rule is not None
    assert Meter.of("answers", document).once_per == (rule.column, rule.within_seconds) == (CONTENT, seconds)


def test_a_stack_that_counts_something_else_once_is_refused_where_the_first_is_not_certain() -> None:
    calls = {"unit": "call", "count": "outcomes", "once_per": {"column": "user_id", "within": "PT1H"}}
    policy = Policy.of({"joins": {"meters": {"calls": calls}}})
    with pytest.raises(UnplaceableError, match="calls counts each user_id once"):
        truth_of(run(7, policy=policy))
    unknown = Policy.of({"joins": {"meters": {"calls": {**calls, "once_per": {"column": "digest", "within": "PT1H"}}}}})
    truth = truth_of(run(7, policy=unknown))
    assert not any("left" in each for each in truth["outcomes"])


def test_a_stack_without_such_a_meter_is_sent_no_answers() -> None:
    meters = tuple(meter for meter in POLICY.meters if meter.once_per is None)
    traffic = run(7, policy=replace(POLICY, meters=meters))
    assert {"repeated", "straggling", "at_the_hour", "taken_back"} <= set(traffic.left_out)
    assert answers(traffic) == {}


@pytest.mark.parametrize(
    ("seed", "records", "start_ms", "rate"),
    [(7_887, 1_039, 1_796_668_417_946, 1_610.99), (30, 1_316, 1_796_340_828_283, 1_557.52)],
)
def test_where_an_account_changes_at_the_hour_another_one_has_the_answers_there(
    seed: int, records: int, start_ms: int, rate: float
) -> None:
    """Of these two the account that was drawn first changes at that hour, so that none of its calls is certain."""
    traffic = run(seed, records, start_ms, replace(POLICY, completion_timeout_seconds=600, grace_seconds=900), rate)
    assert any(record.kind == "answers_at_the_hour" for record in traffic.records)
