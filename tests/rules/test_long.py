"""`make long` writes its page only when each test that it has run passed."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.long import Passed, page


def report(
    test: str,
    when: Literal["setup", "call", "teardown"],
    outcome: Literal["passed", "failed", "skipped"] = "passed",
    seconds: float = 1.0,
) -> pytest.TestReport:
    """What pytest reports of one phase of a test."""
    return pytest.TestReport(test, (test, 1, test), {}, outcome, None, when, duration=seconds)


def reported(*reports: pytest.TestReport) -> Passed:
    passed = Passed()
    for one in reports:
        passed.pytest_runtest_logreport(one)
    return passed


def test_a_test_takes_as_long_as_its_three_phases() -> None:
    passed = reported(report("a", "setup", seconds=60), report("a", "call"), report("a", "teardown", seconds=2))
    assert passed.is_complete
    assert passed.seconds == {"a": 63}


@pytest.mark.parametrize(
    "last",
    [report("b", "call", "failed"), report("b", "setup", "skipped"), report("b", "setup", "failed")],
    ids=["failed", "skipped", "could not begin"],
)
def test_a_run_is_not_complete_where_a_test_has_not_passed(last: pytest.TestReport) -> None:
    assert not reported(report("a", "setup"), report("a", "call"), last).is_complete


def test_a_run_of_nothing_is_not_complete() -> None:
    assert not reported().is_complete


def test_the_page_names_the_slowest_test_first() -> None:
    rows = [line for line in page({"tests/a.py::a": 61.4, "tests/b.py::b": 120}).splitlines() if "::" in line]
    assert rows == ["| `b.py::b` | 120 |", "| `a.py::a` | 61 |"]
