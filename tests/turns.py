"""In which order the workers of `make test` take the files, and in which order each of them imports these.

Directories come one after the other, so that a broker or a server that a directory shares ends with it: an idle broker
takes a fiftieth of a core. Those that compute by themselves come first, beside the end-to-end tests: these see to it
that alerts come in time, and have their stack disturbed least. What waits for Kafka, Spark and other processes comes
when those have ended. The pipelines' tests are last, and of them files of a second: no worker is left alone for long.
"""

from __future__ import annotations

from collections import Counter

import pytest

FIRST = ("rules", "chart", "monitoring", "exports", "contracts", "simulation", "dashboard")
LAST = ("webhooks", "streaming", "api", "pipelines", "e2e")
"""The end-to-end tests' stack runs to the end: where they are not run beside the others, they come after them."""


def take_turns(items: list[pytest.Item]) -> None:
    """Sort tests by their directory's turn, and within it files with many tests before those with few."""
    tests = Counter(item.path for item in items)

    def turn(item: pytest.Item) -> tuple[int, str, int, str]:
        directory = item.path.parent.name
        order = [*FIRST, "", *LAST]
        of_directory = order.index(directory if directory in order else "")
        # The end-to-end tests share a stack, which earlier ones leave as later ones find it.
        return of_directory, directory, 0 if directory == "e2e" else -tests[item.path], str(item.path)

    items.sort(key=turn)


def begin_elsewhere(config: pytest.Config, worker: int, workers: int) -> None:
    """Let each worker import the directories from another one on, and so find most files compiled by the others.

    Only where the whole of `testpaths` is collected. What is collected is sorted afterwards (`take_turns`).
    """
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    left_out = {config.invocation_params.dir / path for path in config.getoption("ignore") or ()}
    tests = config.rootpath / "tests"
    # However deep a file is: one that no worker collects would be missed by nobody.
    found = {tests / file.relative_to(tests).parts[0] for file in tests.rglob("test_*.py")}
    parts = sorted(map(str, found - left_out))
    first = len(parts) * worker // workers
    config.args[:] = [*parts[first:], *parts[:first]]
