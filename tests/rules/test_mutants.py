"""The planted bugs (`make mutants`) can still be planted, and what caught them is still there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import LIST, PLANTED, listed
from tests.mutants.planted import Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", PLANTED, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_and_stays_valid_python(mutant: Mutant) -> None:
    sound = (ROOT / mutant.file).read_text()
    assert sound.count(mutant.sound) == 1, f"{mutant.file} has changed: plant {mutant.name!r} where its rule is now"
    ast.parse(sound.replace(mutant.sound, mutant.broken))


@pytest.mark.parametrize("mutant", PLANTED, ids=lambda mutant: mutant.name)
def test_what_catches_a_bug_is_a_test(mutant: Mutant) -> None:
    assert mutant.caught_by
    for test in mutant.caught_by:
        file, _, name = test.partition("[")[0].partition("::")
        functions = [node for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)]
        assert name in {function.name for function in functions}, test


def test_the_list_is_that_of_the_last_run() -> None:
    assert LIST.read_text() == listed(), "run `make mutants`"


def test_each_bug_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in PLANTED}) == len(PLANTED) >= 16
