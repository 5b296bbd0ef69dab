"""Workers take the same files in the same order, wherever each begins to import them."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.pages import ROOT
from tests.turns import begin_elsewhere, take_turns


def taken(*tests: str) -> list[str]:
    """These tests (`directory/file::name`), in the order in which they are taken."""
    items = [SimpleNamespace(path=Path("tests", test.partition("::")[0]), name=test) for test in tests]
    take_turns(cast("list[pytest.Item]", items))
    return [item.name for item in items]


def test_a_directory_has_one_turn_and_a_file_keeps_the_order_of_its_tests() -> None:
    found = taken("rules/a::2", "api/a::1", "pipelines/a::1", "api/b::2", "streaming/a::1", "rules/b::1", "api/b::1")
    assert [directory for directory, _ in groupby(found, lambda test: test.partition("/")[0])] == [
        *("rules", "streaming", "api", "pipelines")
    ]
    assert [test for test in found if test.startswith("api")] == ["api/b::2", "api/b::1", "api/a::1"]


def test_the_end_to_end_tests_come_last_and_file_by_file_as_they_are_named() -> None:
    assert taken("e2e/a::1", "e2e/b::1", "e2e/b::2", "rules/a::1") == ["rules/a::1", "e2e/a::1", "e2e/b::1", "e2e/b::2"]


def test_a_worker_collects_every_file_however_deep_it_is(tmp_path: Path) -> None:
    for file in ("test_a.py", "rules/test_b.py", "rules/deep/test_c.py", "attack/deep/test_d.py", "e2e/test_e.py"):
        (tmp_path / "tests" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / file).touch()
    config: Any = SimpleNamespace(
        args_source=pytest.Config.ArgsSource.TESTPATHS,
        args=["tests"],
        rootpath=tmp_path,
        invocation_params=SimpleNamespace(dir=tmp_path),
        getoption={"ignore": ["tests/e2e"]}.get,
    )
    begin_elsewhere(config, 1, 3)
    assert config.args == [str(tmp_path / "tests" / part) for part in ("rules", "test_a.py", "attack")]


def test_each_worker_begins_elsewhere_and_all_collect_the_same() -> None:
    def folders(worker: int, source: Any = pytest.Config.ArgsSource.TESTPATHS) -> list[str]:
        config: Any = SimpleNamespace(
            args_source=source,
            args=["tests"],
            rootpath=ROOT,
            invocation_params=SimpleNamespace(dir=ROOT),
            getoption={"ignore": ["tests/e2e"]}.get,
        )
        begin_elsewhere(config, worker, 3)
        return cast("list[str]", config.args)

    found = [folders(worker) for worker in range(3)]
    assert len({each[0] for each in found}) == 3
    assert {*map(frozenset, found)} == {frozenset(found[0])}
    assert {str(ROOT / "tests" / name) for name in ("api", "pipelines", "rules")} <= {*found[0]}
    assert str(ROOT / "tests/e2e") not in found[0]
    assert folders(1, pytest.Config.ArgsSource.ARGS) == ["tests"], "what somebody asked for"
