"""Mutated valid records through all that is shipped: none raises, both readers agree, each has a reason or a row.

2,000 in every run of the tests; `make corpus` takes 100,000, and writes what became of them to tests/corpus/RESULT.md.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import fresh_database
from tests.corpus.agreement import Problem, counted, problems
from tests.corpus.metered import metered
from tests.corpus.mutate import Mutant, mutant, shrunk

ProblemsOf = Callable[[Sequence[Mutant]], list[Problem]]
SEEDS = range(1, 21)
OF_SEED = 5_000
HEAD = """\
# What became of {count:,} mutated records

Written by `make corpus` when none raised, both readers agreed on each, and all that was accepted was billed exactly.
Seeds {seeds}, {of_seed:,} records each, every fourth a catalog change.

| record | disposition | reason | records |
|---|---|---|---|
"""
RESULT = Path(__file__).parents[1] / "corpus" / "RESULT.md"
Counts = Counter[tuple[str, str, str]]


@pytest.fixture(scope="module")
def counts() -> Counts:
    return Counter()


@pytest.fixture
def problems_of(spark: SparkSession, postgres_url: str, tmp_path: Path, counts: Counts) -> ProblemsOf:
    """All problems of some mutants, each time on a broker, tables and a database of their own."""

    def found_in(mutants: Sequence[Mutant]) -> list[Problem]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        with ExitStack() as held:
            database = held.enter_context(fresh_database(postgres_url))
            try:
                found = metered(spark, database, folder, mutants)
            except Exception:  # noqa: BLE001 -- that nothing raises is what is tested
                return [Problem(traceback.format_exc())]
            counts.update(counted(found))
            return list(problems(found))

    return found_in


def smallest(mutants: Sequence[Mutant], found: list[Problem], problems_of: ProblemsOf) -> Mutant | None:
    """One record that is a problem alone, with as few mutations as it takes; None: it takes several."""
    suspects = [problem.mutant for problem in found if problem.mutant is not None][:1] or list(mutants)
    while len(suspects) > 1:
        halves = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
        suspects = next((half for half in halves if problems_of(half)), [])
    if not suspects or not problems_of(suspects):
        return None
    return shrunk(suspects[0], lambda smaller: bool(problems_of([smaller])))


def check(problems_of: ProblemsOf, seed: int, count: int) -> None:
    mutants = [mutant(seed, number) for number in range(count)]
    found = problems_of(mutants)
    if found:
        first = next((problem for problem in found if problem.mutant), found[0])
        pytest.fail(
            f"{len(found)} problems among {count} records of seed {seed}, the first:\n{first.text}\n{first.mutant}\n"
            f"The smallest record with a problem: {smallest(mutants, found, problems_of)}"
        )


@pytest.mark.long
@pytest.mark.timeout(900)
def test_mutated_records_have_a_reason_or_a_row_and_both_readers_agree(problems_of: ProblemsOf) -> None:
    check(problems_of, seed=0, count=2_000)


@pytest.mark.corpus
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", SEEDS)
def test_so_do_very_many(problems_of: ProblemsOf, seed: int) -> None:
    check(problems_of, seed, OF_SEED)


@pytest.mark.corpus
def test_what_became_of_them_is_written_down(counts: Counts) -> None:
    assert counts.total() == len(SEEDS) * OF_SEED, "write it down only when all ran"
    rows = "".join(
        f"| {kind} | {disposition} | {reason} | {count} |\n"
        for (kind, disposition, reason), count in sorted(counts.items())
    )
    RESULT.write_text(f"{HEAD.format(count=counts.total(), seeds=f'{SEEDS[0]} to {SEEDS[-1]}', of_seed=OF_SEED)}{rows}")
