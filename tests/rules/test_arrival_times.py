"""Times between outcomes from panes in any cut, against all instants at once: exact, or within the stated error."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.arrival_times import MAX_ERROR_MICROSECONDS, MAX_TIMES, MICROSECONDS, ArrivalTimes
from metering.views import RANKS

BEGIN = 29_453_760 * MICROSECONDS
instants = st.integers(BEGIN, BEGIN + 3 * MICROSECONDS)


def by_force(listed: list[int]) -> dict[str, float] | None:
    """The least gap that at least so many in a hundred are not above."""
    gaps = sorted(later - at for at, later in pairwise(sorted(listed)))
    percents = (50, 90, 95, 99) if gaps else ()
    return {f"p{percent}": gaps[(percent * len(gaps) + 99) // 100 - 1] / 1_000 for percent in percents} or None


def merged(*parts: str | list[int]) -> ArrivalTimes:
    found = ArrivalTimes()
    for part in parts:
        found.add(part)
    return found


@given(st.lists(st.lists(instants, min_size=1), min_size=1))
def test_times_between_few_outcomes_are_exact_in_any_order_and_cut(parts: list[list[int]]) -> None:
    stored = [merged(part).stored() for part in parts]
    every = [instant for part in parts for instant in part]
    assert merged(*stored).percentiles_ms(RANKS) == by_force(every)
    assert merged(*reversed(stored)).stored() == merged(*parts).stored() == merged(every).stored()


@pytest.mark.parametrize("seed", range(30))
def test_of_many_outcomes_any_order_and_cut_stores_the_same_few_bytes_and_no_time_is_off_by_the_stated_error(
    seed: int,
) -> None:
    chance = random.Random(seed)
    spread = chance.choice([2_000, 10**6, MICROSECONDS])
    every = [BEGIN + int(chance.random() ** 2 * spread) for _ in range(chance.randint(900, 6_000))]
    every += [BEGIN + MICROSECONDS + chance.randrange(MICROSECONDS) for _ in range(chance.randint(0, 50))]
    whole = merged(every)
    chance.shuffle(every)
    borders = sorted(chance.sample(range(len(every)), 6))
    parts = [every[a:b] for a, b in zip([0, *borders], [*borders, len(every)], strict=True)]
    found = merged(merged(*parts[:2]).stored(), merged(parts[2]).stored(), *parts[3:])
    assert found.stored() == whole.stored()
    assert len(found.stored()) <= MAX_TIMES * 8
    exact, shown = by_force(every), found.percentiles_ms(RANKS)
    assert exact is not None
    assert shown is not None
    errors = [abs(shown[name] - exact[name]) * 1_000 for name in RANKS]
    assert max(errors) < MAX_ERROR_MICROSECONDS
    if len(set(every)) <= MAX_TIMES:
        assert shown == exact


def test_a_thousand_and_one_different_instants_of_a_minute_are_exact_and_more_are_rounded_by_as_little_as_needed() -> (
    None
):
    exact = [BEGIN + 7 * number for number in range(MAX_TIMES)]
    assert merged(exact).percentiles_ms(RANKS) == dict.fromkeys(RANKS, 0.007)
    rounded = merged([*exact, BEGIN + 7 * MAX_TIMES]).percentiles_ms(RANKS)
    # Within eight microseconds: some of them fall together.
    assert rounded == dict.fromkeys(RANKS, 0.008)


def test_outcomes_at_one_instant_have_no_time_between_them_and_one_alone_has_none_at_all() -> None:
    assert merged([BEGIN] * 100_000, [BEGIN + 5_000]).percentiles_ms(RANKS) == dict.fromkeys(RANKS, 0.0)
    assert merged([BEGIN, BEGIN + 5_000]).percentiles_ms(RANKS) == dict.fromkeys(RANKS, 5.0)
    assert merged([BEGIN]).percentiles_ms(RANKS) is None
    assert merged([]).stored() == ""
    assert merged("").percentiles_ms(RANKS) is None
