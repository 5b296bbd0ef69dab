"""Incidents of generated traffic: the brute force finds each that was planted, no near miss, and no repeat counts."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.incidents.brute_force import ambiguous, crossings, leaks, seen, storms
from tests.rules.test_traffic_truth import START_MS
from traffic.generate import Traffic, catalog_of, generate
from traffic.placement import Placement, Policy, UnplaceableError
from traffic.scenarios.incidents import LIMIT_TOKENS, NEAR_MISSES, PLANTED, IncidentKind, limit_rows
from traffic.truth import truth_of

POLICY = Policy()


def run(seed: int, policy: Policy = POLICY, *, records: int = 1_200, has_incidents: bool = True) -> Traffic:
    placement = Placement(policy)
    catalog = catalog_of(seed, START_MS - 42_345, policy.priced)
    return generate(
        seed=seed,
        start_ms=START_MS,
        records=records,
        placement=placement,
        catalog=catalog,
        has_incidents=has_incidents,
    )


@pytest.mark.parametrize("policy", [POLICY, Policy(best_report_bills=False), Policy(600, grace_seconds=900)])
@pytest.mark.parametrize("seed", range(4))
def test_the_brute_force_finds_each_planted_incident_and_no_near_miss(seed: int, policy: Policy) -> None:
    traffic = run(seed, policy)
    assert Counter(incident.kind for incident in traffic.incidents) == PLANTED == {"storm": 5, "leak": 3, "crossing": 7}
    truth = truth_of(traffic)
    outcomes = seen(truth)
    planted = {kind: [one for one in traffic.incidents if one.kind is kind] for kind in IncidentKind}
    of_keys = {kind: sorted((one.account, one.api_key) for one in found) for kind, found in planted.items()}
    # Each is found once; ordinary keys, which many gateways use at once, change their region, too.
    assert sorted(match[:2] for match in storms(outcomes)) == of_keys[IncidentKind.STORM]
    of_leaks = sorted(match[:2] for match in leaks(outcomes) if "key-leak" in match[1])
    assert of_leaks == of_keys[IncidentKind.LEAK]
    crossed = sorted(account for account, _ in crossings(truth))
    assert crossed == sorted(one.account for one in planted[IncidentKind.CROSSING])
    own = {(one.account, one.api_key) for one in traffic.incidents}
    assert not own & (ambiguous(outcomes, "status") | ambiguous(outcomes, "region"))


@pytest.mark.parametrize("seed", range(4))
def test_some_of_an_incident_comes_late_and_some_twice_and_each_near_miss_would_be_one_if_repeats_counted(
    seed: int,
) -> None:
    traffic = run(seed)
    of_key: dict[str, list[tuple[str, int, int]]] = {}
    for record in traffic.records:
        key = json.loads(record.value)["data"].get("api_key_id", "") if record.source else ""
        if key.split("-")[1:2] and key.split("-")[1] in set(IncidentKind):
            lag_ms = record.send_at_ms - START_MS
            of_key.setdefault(key, []).append((record.disposition, lag_ms, len(record.value)))
    assert len(of_key) == sum(PLANTED.values()) + sum(NEAR_MISSES.values())
    kinds = Counter(record.kind for record in traffic.records)
    assert kinds["incident_repeat"] > sum(PLANTED.values())
    truth_late = {outcome.request_id for outcome in traffic.outcomes if outcome.decided_ms - outcome.event_ms > 180_000}
    own = [outcome for outcome in traffic.outcomes if outcome.texts.get("api_key_id") in of_key]
    late = {outcome.texts["api_key_id"] for outcome in own if outcome.request_id in truth_late}
    assert {key.split("-")[1] for key in late} >= {IncidentKind.STORM, IncidentKind.LEAK}
    # Twice what came of the last call of each account that stays below its limit is above it.
    used = Counter[str]()
    for outcome in own:
        if "crossing" in outcome.texts["api_key_id"]:
            used[outcome.texts["api_key_id"]] += int(outcome.reported["output_tokens"] or 0)
    below = [tokens for tokens in used.values() if tokens < LIMIT_TOKENS]
    assert len(below) == NEAR_MISSES[IncidentKind.CROSSING]
    assert all(tokens + tokens // 2 >= LIMIT_TOKENS for tokens in below)


def test_incidents_are_planted_only_when_asked_for_and_the_same_seed_plants_the_same_bytes() -> None:
    assert run(3).records == run(3).records
    without = run(3, has_incidents=False)
    assert without.incidents == ()
    assert "incidents" not in truth_of(without)
    assert not {"storm", "leak", "crossing", "incident_repeat"} & {record.kind for record in without.records}


def test_each_account_of_a_run_has_the_limit() -> None:
    catalog = run(3).catalog
    rows = limit_rows(catalog)
    assert {row["account"] for row in rows} == set(catalog.accounts)
    assert {(row["meter"], row["quantity"], row["period"]) for row in rows} == {("output_tokens", "4000000", "P1M")}


def test_a_policy_that_leaves_errors_of_a_storm_no_room_is_refused() -> None:
    with pytest.raises(UnplaceableError, match="storm"):
        run(1, Policy(completion_timeout_seconds=200, grace_seconds=300))
