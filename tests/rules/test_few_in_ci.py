"""Of a test with many cases CI runs a few, always the same, and `make long` all others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.few_in_ci import MARK, leave_to_long

COUNT = 3
CASES = [f"tests/test_a.py::test_many[{number}]" for number in range(10)]


class Item:
    """A collected test, as far as it is asked."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid, self.marks = nodeid, [mark.mark for mark in marks]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.mark)


def left_to_long(names: list[str], *others: Any) -> set[str]:
    items: list[Any] = [*(Item(name, getattr(pytest.mark, MARK)(COUNT)) for name in names), *others]
    leave_to_long(items)
    return {item.nodeid for item in items if item.get_closest_marker("long")}


def test_so_many_cases_are_run_and_all_others_are_long() -> None:
    assert len(left_to_long(CASES)) == len(CASES) - COUNT


def test_they_are_the_same_in_any_order_of_collection() -> None:
    assert left_to_long(CASES) == left_to_long(CASES[::-1])


def test_a_case_that_is_selected_runs_alone() -> None:
    assert not any(left_to_long([case]) for case in CASES)


def test_ci_runs_a_few_cases_of_each_marked_test_and_all_of_the_others() -> None:
    others = [case.replace("test_many", "test_more") for case in CASES]
    plain = Item("tests/test_a.py::test_plain")
    found = left_to_long([*CASES, *others], plain)
    assert len(found & {*CASES}) == len(found & {*others}) == len(CASES) - COUNT
    assert plain.nodeid not in found
