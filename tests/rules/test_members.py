"""A member that occurs twice in a JSON object is found, however many members there are."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from metering.members import member_twice


@given(st.lists(st.sampled_from("abcdef")))
def test_only_a_repeated_name_is_reported(names: list[str]) -> None:
    found = member_twice([(name, 0) for name in names])
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    assert found == (twice[0] if twice else None)


def test_a_name_that_is_empty_is_given_too() -> None:
    assert member_twice([("", 1), ("", 2)]) == ""


def test_a_hundred_thousand_members_take_no_minutes() -> None:
    names = [*map(str, range(100_000)), "99999"]
    began = time.thread_time()
    assert member_twice([(name, None) for name in names]) == "99999"
    assert time.thread_time() - began < 5
