"""A meter is declared once; where a place still has to name it, this says which one forgot it."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from metering.meters import REPORTED, REPORTED_COLUMNS, TOKENS, Meter

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ROOTS = ["metering", "jobs", "catalog", "deployment", "cli", "laptop", "traffic", "monitoring", "dashboard", "charts"]
MEANT = {
    "metering/meters.py",
    # A truth that shares nothing with what it judges.
    "traffic/meters.py",
}
"""Product files that write out what completions report, and must."""


def row_of(table: str, first: str) -> str:
    """The row of a table of the README that begins with `first`."""
    found = re.search(rf"^\| {re.escape(first)} \|(.*)$", README.partition(f"## {table}")[2], re.MULTILINE)
    assert found, f"the README has no row {first}"
    return found[1]


def test_what_completions_report_stands_in_the_contract_of_the_readme() -> None:
    contract = row_of("The event contract", "`ai.inference.completion.v1`")
    assert {name for name in REPORTED_COLUMNS if f" {name}?," not in contract} == set()


def test_each_meter_stands_in_the_glossary() -> None:
    assert row_of("Glossary", "meter").strip(" |").split(", ") == list(Meter)


def test_no_other_file_lists_the_meters_again() -> None:
    """A list of two quantities or more, each by name: it forgets the next one. Examples name one at a time, or all."""
    written = re.compile(rf"""["'](?:{"|".join(REPORTED_COLUMNS)})["']""")
    listing = {
        str(path.relative_to(ROOT))
        for root in ROOTS
        for path in (ROOT / root).rglob("*.py")
        # A migration that has landed is never edited.
        if "migrations" not in path.parts and len(set(written.findall(path.read_text()))) > 1
    }
    assert listing - {"traffic/malformed.py", "charts/weir/files/bill_one_event.py"} == MEANT


@pytest.mark.parametrize("meter", Meter)
def test_a_meter_is_declared_so_that_it_can_be_summed_and_shown(meter: Meter) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", meter)
    units = {other.value: other.counts.unit for other in Meter if other is not meter}
    assert meter.counts.within is None or units[meter.counts.within] == meter.counts.unit
    assert pickle.loads(pickle.dumps(meter)) is meter


def test_outcomes_are_counted_or_what_completions_report_is_summed() -> None:
    assert [meter for meter in Meter if meter not in REPORTED] == [Meter.REQUESTS]


def test_a_total_of_tokens_counts_none_twice() -> None:
    assert TOKENS == (Meter.INPUT_TOKENS, Meter.OUTPUT_TOKENS)
