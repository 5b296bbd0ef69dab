"""`@pytest.mark.few_in_ci(5)`: of a test with many cases, CI runs five and `make long` the others."""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256

import pytest

MARK = "few_in_ci"


def leave_to_long(items: list[pytest.Item]) -> None:
    """Mark as `long` all but the few cases of each test that CI runs.

    Which they are goes by a hash of their names: a test with two parameters keeps cases of many values of both, and the
    same ones on every machine. A single case that is asked for by its name is run.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker(MARK):
            cases[item.nodeid.partition("[")[0]].append(item)
    for of_test in cases.values():
        mark = of_test[0].get_closest_marker(MARK)
        assert mark is not None
        (count,) = mark.args
        for item in sorted(of_test, key=lambda item: sha256(item.nodeid.encode()).digest())[count:]:
            item.add_marker(pytest.mark.long)
