"""Every event is at least 60 s from the boundary that would change its fate, computed anew from the bytes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rules.test_traffic_truth import POLICY, START_MS, large, milliseconds, run
from traffic.events import REVERSAL
from traffic.generate import Traffic
from traffic.truth import truth_of

MARGIN_MS, SLACK_MS, MINUTE_MS = 60_000, 30_000, 60_000
WEIRS_OWN = replace(POLICY, completion_timeout_seconds=600, grace_seconds=900)
BY_MODEL = replace(
    POLICY, completion_timeouts={"aurora-nano": 300, "fjord-max": 110, "basalt-small": 400}, grace_seconds=700
)
POLICIES = (POLICY, WEIRS_OWN, BY_MODEL)
PAST_MS, FUTURE_MS = POLICY.accept_past_seconds * 1000, POLICY.accept_future_seconds * 1000

EXAMPLES = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
traffics = st.builds(
    run,
    st.integers(0, 10_000),
    st.integers(350, 1_500),
    st.integers(START_MS, START_MS + 40 * 86_400_000),
    policy=st.sampled_from(POLICIES),
    rate=st.floats(min_value=20, max_value=2_000),
)


def timeout_ms(traffic: Traffic, models: Iterable[str]) -> int:
    """The shortest of what requests of these models wait."""
    policy = traffic.placement.policy
    return 1000 * min(policy.completion_timeouts.get(m, policy.completion_timeout_seconds) for m in models)


def longest_timeout_ms(traffic: Traffic) -> int:
    policy = traffic.placement.policy
    return 1000 * max(policy.completion_timeout_seconds, *policy.completion_timeouts.values(), 0)


def event_times(document: dict[str, Any], sent_ms: int) -> tuple[int, int]:
    """The earliest and latest event time, whenever the record arrives within the slack after it was sent."""
    occurred_ms = milliseconds(document["time"])
    if "senttime" not in document or not fnmatchcase(document["source"], "device/*"):
        return occurred_ms, occurred_ms
    corrected_ms = occurred_ms + sent_ms - milliseconds(document["senttime"])
    return corrected_ms, corrected_ms + SLACK_MS


BORDERS = ("border_change", "border_minute", "border_month", "border_day")
"""Events of gateways, whose times are what they say: they may lie wherever they are wanted."""


def identified(traffic: Traffic, but_for: Collection[str] = ()) -> list[tuple[str, int, dict[str, Any]]]:
    """(disposition, planned sending, document) of every record that is an event, but for those of some kinds."""
    records = (record for record in traffic.records if record.source is not None and record.kind not in but_for)
    return [(record.disposition, record.send_at_ms, json.loads(record.value)) for record in records]


@EXAMPLES
@given(traffics)
def test_the_ends_of_the_accept_window_are_far(traffic: Traffic) -> None:
    for record in traffic.records:
        if record.source is None:
            continue
        first_ms, last_ms = event_times(json.loads(record.value), record.send_at_ms)
        oldest, newest = record.send_at_ms, record.send_at_ms + SLACK_MS
        if record.reason == "future":
            assert first_ms >= newest + FUTURE_MS + MARGIN_MS
        elif record.reason == "too_old":
            assert last_ms <= oldest - PAST_MS - MARGIN_MS
        else:
            assert newest - PAST_MS + MARGIN_MS <= first_ms
            assert last_ms <= oldest + FUTURE_MS - MARGIN_MS


@EXAMPLES
@given(traffics)
def test_parts_of_one_request_are_far_from_the_completion_timeout(traffic: Traffic) -> None:
    sent: dict[tuple[str, str], list[int]] = defaultdict(list)
    models: dict[tuple[str, str], set[str]] = defaultdict(set)
    for disposition, sent_ms, document in identified(traffic):
        if disposition == "accepted" and "request_id" in document["data"] and document["type"] != REVERSAL:
            key = document["subject"], document["data"]["request_id"]
            sent[key].append(sent_ms)
            models[key] |= {document["data"]["model"]} if "model" in document["data"] else set()
    for key, instants in sent.items():
        if len(instants) > 1 and models[key]:
            assert max(instants) - min(instants) <= timeout_ms(traffic, models[key]) - MARGIN_MS - SLACK_MS


@EXAMPLES
@given(traffics)
def test_the_end_of_grace_is_far_from_every_outcome(traffic: Traffic) -> None:
    truth = truth_of(traffic)
    stragglers = {(s["account"], s["request_id"]) for s in truth["stragglers"]}
    parts: dict[tuple[str, str], list[tuple[str, int, tuple[int, int], str]]] = defaultdict(list)
    for disposition, sent_ms, document in identified(traffic):
        kind = document["type"].split(".")[2]
        if disposition == "accepted" and kind in ("request", "completion", "usage"):
            times = event_times(document, sent_ms)
            data = document["data"]
            parts[document["subject"], data["request_id"]].append((kind, sent_ms, times, data.get("model", "")))
    for key, found in parts.items():
        by_kind: dict[str, tuple[int, tuple[int, int]]] = {}
        for kind, sent_ms, times, _ in found:
            by_kind.setdefault(kind, (sent_ms, times))
        whole = "usage" in by_kind or len(by_kind) == 2
        billed = by_kind.get("usage") or by_kind.get("completion") or by_kind["request"]
        waits_ms = longest_timeout_ms(traffic) if "completion" in by_kind else timeout_ms(traffic, [found[0][3]])
        decided_ms = max(sent_ms for sent_ms, _ in by_kind.values()) + (0 if whole else waits_ms)
        first_ms, last_ms = billed[1]
        assert first_ms // MINUTE_MS == last_ms // MINUTE_MS
        over_ms = (first_ms // MINUTE_MS + 1) * MINUTE_MS + traffic.placement.policy.grace_seconds * 1000
        if key in stragglers:
            assert decided_ms >= over_ms + MARGIN_MS
        else:
            assert decided_ms + SLACK_MS <= over_ms - MARGIN_MS


@EXAMPLES
@given(traffics)
def test_changes_of_price_and_plan_are_far_from_every_billed_event(traffic: Traffic) -> None:
    models = {(o.account, o.request_id): o.model for o in traffic.outcomes if o.outcome in ("matched", "abandoned")}
    for disposition, sent_ms, document in identified(traffic, but_for=BORDERS):
        if disposition != "accepted" or "request_id" not in document["data"] or document["type"] == REVERSAL:
            continue
        model = models.get((document["subject"], document["data"]["request_id"]))
        if model is None:
            continue
        first_ms, last_ms = event_times(document, sent_ms)
        for change_ms in traffic.catalog.changes(document["subject"], model):
            assert not first_ms - MARGIN_MS < change_ms < last_ms + MARGIN_MS


@EXAMPLES
@given(traffics)
def test_an_event_labelled_late_is_late_by_a_minute(traffic: Traffic) -> None:
    truth = truth_of(traffic)
    late = set(truth["late"])
    for outcome in traffic.outcomes:
        if outcome.request_id in late and outcome.outcome != "superseded":
            end_ms, grace_ms = (
                (outcome.event_ms // MINUTE_MS + 1) * MINUTE_MS,
                traffic.placement.policy.grace_seconds * 1000,
            )
            assert end_ms + MARGIN_MS <= outcome.decided_ms <= end_ms + grace_ms - MARGIN_MS - SLACK_MS


def test_sessions_are_far_from_the_gap_in_a_run_of_the_usual_length() -> None:
    traffic, truth = large()
    gap_ms = POLICY.session_gap_seconds * 1000
    moments: dict[tuple[str, str], list[int]] = defaultdict(list)
    for disposition, sent_ms, document in identified(traffic):
        kind = document["type"]
        user = document["data"].get("user_id")
        is_activity = kind in ("ai.inference.request.v1", "ai.inference.usage.v1", "com.example.trace")
        if disposition == "accepted" and user and is_activity:
            calls = len(document["data"].get("calls", [document]))
            moments[document["subject"], user] += [event_times(document, sent_ms)[0]] * calls
    expected = {
        (user["account"], user["user_id"]): [session["events"] for session in user["sessions"]]
        for user in truth["sessions"]
    }
    assert moments.keys() == expected.keys()
    for user, instants in moments.items():
        instants.sort()
        gaps = [b - a for a, b in pairwise(instants)]
        assert all(abs(gap - gap_ms) > MARGIN_MS for gap in gaps)
        assert sum(expected[user]) == len(instants)
        assert len(expected[user]) == 1 + sum(gap > gap_ms for gap in gaps)


def test_a_run_is_sent_in_order_and_in_the_time_it_says() -> None:
    traffic, truth = large()
    sent = [record.send_at_ms for record in traffic.records]
    assert sent == sorted(sent)
    assert milliseconds(truth["started_at"]) <= sent[0] < START_MS <= sent[traffic.sent_before]
    assert sent[-1] == milliseconds(truth["ends_at"])
    assert sent[-1] <= START_MS + 20_000 / 1_500 * 1000 + 60_000
