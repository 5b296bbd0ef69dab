"""`make faults`: what is pure in it. A run proves nothing whose plan leaves something out, or which cannot fail."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from monitoring.alerts import ALERTS
from tests.faults.alerts import BY_FAULTS, BY_TRAFFIC, MUST_BY_TRAFFIC, NEVER, compare
from tests.faults.plan import KINDS, Kind, bound, draw
from tests.faults.posting import compared
from tests.faults.result import kept, said_of
from tests.faults.stage import DriverRows, config_of, driver_rows_of
from tests.faults.strikes import STRIKES
from tests.faults.verdict import Verdict, verdict, with_posted
from tests.pages import README, guide
from traffic.compare import Check, Comparison

ROUND = {(kind, target): drawn.times for kind, drawn in KINDS.items() for target in drawn.targets}
EQUAL = (
    Check("accepted: normal", 7, 7),
    Check("events lost", 0, 0),
    Check("events duplicated", 0, 0),
    Check("windows of requests", 3, 3, is_money=True),
)


@given(st.integers(), st.integers(1, 100))
def test_a_seed_draws_the_same_faults_every_10_to_15_seconds(seed: int, count: int) -> None:
    faults = draw(seed, count)
    assert faults == draw(seed, count)
    assert len(faults) == count
    gaps = [after.at_seconds - before.at_seconds for before, after in pairwise(faults)]
    assert all(9.9 <= gap <= 15.1 for gap in gaps)
    for fault in faults:
        assert KINDS[fault.kind].least_seconds - 0.1 <= fault.lasts_seconds <= KINDS[fault.kind].most_seconds + 0.1


@given(st.integers())
def test_a_round_hits_every_target_with_every_kind_as_often_as_planned(seed: int) -> None:
    assert Counter((fault.kind, fault.target) for fault in draw(seed, sum(ROUND.values()))) == ROUND


def test_what_is_left_out_is_never_drawn_and_the_rest_still_is() -> None:
    left_out = frozenset({(Kind.CLOCK_AHEAD, "kafka")})
    drawn = {(fault.kind, fault.target) for fault in draw(1, sum(ROUND.values()), left_out)}
    assert drawn == ROUND.keys() - left_out


def test_every_kind_can_be_struck() -> None:
    assert KINDS.keys() == STRIKES.keys() == set(Kind)


def test_every_alert_is_classified_by_what_may_raise_it() -> None:
    said = [*BY_TRAFFIC, *BY_FAULTS, *NEVER]
    assert sorted(said) == sorted({alert.name for alert in ALERTS})
    assert MUST_BY_TRAFFIC <= BY_TRAFFIC


def test_an_alert_is_classified_as_right_wrong_or_missed() -> None:
    poisoned = {(Kind.POISON, "kafka")}
    assert compare({"RecordsIsolated", *MUST_BY_TRAFFIC}, poisoned).wrong == ()
    assert compare({"RecordsIsolated", *MUST_BY_TRAFFIC}, set()).wrong == ("RecordsIsolated",)
    assert compare(MUST_BY_TRAFFIC, poisoned).missed == ("RecordsIsolated",)
    assert compare({"ConservationBroken", *MUST_BY_TRAFFIC}, poisoned).wrong == ("ConservationBroken",)


def test_the_bound_is_3_over_n_and_absent_after_a_failure() -> None:
    assert bound(300, 0) == 0.01
    assert bound(2, 0) == 1.0
    assert bound(300, 1) is None
    assert bound(0, 0) is None


def test_nothing_is_wrong_where_all_is_as_the_truth_says() -> None:
    assert verdict(Comparison(EQUAL), (), poison_sent=2, poison_found=2).failures == 0


def test_each_thing_that_is_not_as_it_must_be_is_counted_once_as_lost_doubled_or_wrong() -> None:
    found = Comparison(
        (
            Check("accepted: normal", 7, 5),
            Check("events lost", 0, 0, 2),
            Check("events duplicated", 0, 0, 1),
            Check("windows of requests", 3, 2, 1, is_money=True),
        )
    )
    seen = verdict(found, ("i1: a hole",), poison_sent=2, poison_found=1)
    assert (seen.lost, seen.doubled, seen.wrong) == (2, 1, 2 + 2 + 1 + 1)
    assert seen.failures == 9


@given(st.sampled_from(EQUAL), st.integers(1, 9))
def test_no_check_can_differ_without_a_failure(check: Check, count: int) -> None:
    others = [each for each in EQUAL if each is not check]
    worse = Check(check.name, check.expected, check.found, count, is_money=check.is_money)
    assert verdict(Comparison((*others, worse)), (), poison_sent=0, poison_found=0).failures == count


def test_the_guide_has_the_results_of_the_runs() -> None:
    assert said_of(kept()) in guide(), f"say in docs/explanation/how-it-is-tested.md: {said_of(kept())}"


def test_the_readme_has_the_number_of_faults() -> None:
    begin = said_of(kept()).partition(";")[0]
    assert begin in " ".join(README.read_text(encoding="utf-8").split()), f"say in the README: {begin}"


def test_every_run_that_is_kept_could_have_seen_a_fault_and_saw_none() -> None:
    assert sum(result["faults"] for result in kept()) >= 300
    for result in kept():
        assert result["passed"], result["began_at"]
        assert result["planted_and_seen"] == {"lost event": True, "lost window": True}


def test_an_event_that_was_posted_counts_as_lost_doubled_or_wrongly_billed() -> None:
    nothing = Verdict(0, 0, 0, ())
    promised = ["e-0", "e-1", "e-2"]
    assert with_posted(nothing, compared(promised, promised, 3)) == nothing
    lost = with_posted(nothing, compared(promised, ["e-0", "e-2"], 2))
    assert (lost.lost, lost.doubled, lost.wrong) == (1, 0, 1)
    doubled = with_posted(nothing, compared(promised, [*promised, "e-1"], 4))
    assert (doubled.lost, doubled.doubled, doubled.wrong) == (0, 1, 1)
    assert with_posted(nothing, compared(promised, [*promised, "of nobody"], 3)).doubled == 1
    assert with_posted(nothing, compared(promised, promised, 3, ["rejected"])).failures == 1
    assert with_posted(Verdict(1, 1, 1, ("x",)), compared(promised, promised, 3)) == Verdict(1, 1, 1, ("x",))


def sized(rows: DriverRows) -> dict[str, int | None]:
    """`driver_rows` of each application that has it."""
    configs = {name: config.model_dump() for name, config in config_of(rows).items()}
    return {name: config["driver_rows"] for name, config in configs.items() if "driver_rows" in config}


def test_a_run_may_leave_every_batch_to_tasks_in_all_applications_that_have_two_sizes() -> None:
    assert sized(driver_rows_of(1, 1)) == {"ingestion": 1, "joins": 1, "billing": 1}


def test_a_run_has_each_size_and_three_seeds_have_each_in_each_application() -> None:
    drawn = [sized(driver_rows_of(seed, None)) for seed in (1, 2, 3)]
    for rows in drawn:
        assert {*rows.values()} == {1, 100, None}
    for name in ("ingestion", "joins", "billing"):
        assert {rows[name] for rows in drawn} == {1, 100, None}
