"""Method: drivers that read a log and are killed at random, or by a record, as a simulation of starts and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jobs.runtime.kafka.quarantine.attempts import ALONE_LIMIT, FIRST_LOOK, Attempt

MOST = 200_000


def after(last: Attempt, positions: dict[int, int]) -> Attempt:
    """As `Attempts.next` has it of a driver that did not end in order."""
    if last.positions == positions:
        return last.failed()
    return last.resumed(positions, MOST) if last.is_quarantined else Attempt.first_look(positions, MOST)


def starts(
    length: int, poison: int | None, kills: Sequence[bool], last: Attempt | None = None
) -> tuple[int, list[int]]:
    """Read a log of one partition to its end; how many starts it took, and which records were given up.

    `kills`: whether each batch, in turn, is ended by somebody before it was committed; after them nobody interferes.
    `last`: what the driver before the first start wrote down.
    """
    killed, position, given_up, started = iter(kills), 0, list[int](), 0
    while position < length:
        started += 1
        attempt = Attempt({0: position}, MOST) if last is None else after(last, {0: position})
        while position < length:
            last = attempt
            taken = 1 if attempt.must_give_up else min(attempt.records, length - position)
            is_fatal = poison is not None and position <= poison < position + taken and not attempt.must_give_up
            if is_fatal or next(killed, False):
                break
            if attempt.must_give_up:
                given_up.append(position)
            position += taken
            attempt = attempt.passed(taken, {0: position}, MOST) if attempt.is_quarantined else attempt
    return started, given_up


@given(st.integers(1, 500_000), st.data())
def test_the_record_that_ends_every_driver_is_given_up_and_no_other(length: int, data: st.DataObject) -> None:
    poison = data.draw(st.integers(0, length - 1))
    started, given_up = starts(length, poison, [])
    assert given_up == [poison]
    assert started <= 5 + ALONE_LIMIT


@given(st.integers(0, 3_000), st.integers(3_001, 500_000))
def test_a_record_that_ends_a_driver_which_had_read_others_is_given_up_by_the_sixth_start(
    poison: int, length: int
) -> None:
    """It comes soon after what was committed last: that is what a first look, and then a larger one, are for."""
    started, given_up = starts(length, poison, [], Attempt({0: -1_000}, MOST))
    assert given_up == [poison]
    assert started <= (5 if poison < FIRST_LOOK else 6)


@given(st.integers(1, 500_000), st.lists(st.booleans(), max_size=30))
def test_killed_drivers_make_no_dead_letter_of_a_good_record(length: int, kills: list[bool]) -> None:
    in_a_row = max((len(run) for run in "".join("x" if kill else " " for kill in kills).split()), default=0)
    _, given_up = starts(length, None, kills)
    assert not given_up or in_a_row >= ALONE_LIMIT


@given(st.lists(st.sampled_from(["sink", "waits", "kill", "validating"]), min_size=1, max_size=40))
def test_only_a_record_that_fails_before_it_is_validated_is_given_up(failures: list[str]) -> None:
    """One record, alone, again and again: the sink fails after it was validated, or the driver waits or is killed."""
    attempt, in_a_row = Attempt({0: 0}, 1, 1), 0
    for failure in failures:
        is_its_own = failure in ("kill", "validating")
        last = attempt if is_its_own else replace(attempt, is_blameless=True)
        attempt = last.resumed({0: 0}, MOST) if failure == "waits" else last.failed()
        in_a_row = in_a_row + 1 if is_its_own else min(in_a_row, ALONE_LIMIT - 1)
        assert not attempt.is_blameless
        assert attempt.must_give_up == (in_a_row >= ALONE_LIMIT) or failure == "waits"
    if not {"kill", "validating"} & set(failures):
        assert not attempt.must_give_up


def test_a_verdict_whose_dead_letter_was_not_stored_is_looked_at_once_more() -> None:
    validated = replace(Attempt({0: 0}, 1, 1, failures_alone=ALONE_LIMIT), is_blameless=True)
    again = validated.failed()
    assert not again.must_give_up
    assert again.failed().must_give_up


def test_two_kills_without_progress_only_make_batches_smaller() -> None:
    assert starts(1_000_000, None, [True, True, False, True, True])[1] == []


@given(st.integers(1, 300_000))
def test_after_a_failure_batches_grow_again_until_spark_reads(records: int) -> None:
    attempt = Attempt({0: 0}, records).failed().failed()
    for passed in range(10**9):
        if not attempt.is_quarantined:
            break
        attempt = attempt.passed(attempt.records, {0: passed}, records)
    assert attempt.records == records


@given(st.integers(1, MOST))
def test_dividing_a_batch_makes_no_more_parts_than_a_start_can_scan(most: int) -> None:
    """Of large records there are few in a batch of Spark's, yet as many as it reads ahead are looked at."""
    attempt = Attempt({0: 0}, most)
    for _ in range(3):
        attempt = attempt.failed()
        assert attempt.quarantine_records < 102 * attempt.records
