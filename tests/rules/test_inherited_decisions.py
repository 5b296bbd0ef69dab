"""What corrects others has the decision of what it corrects, meter by meter, over as many steps as there are."""

from __future__ import annotations

import polars as pl

from jobs.audit.decisions import CORRECTING, DECIDED, inherited

Entry = tuple[int, str]


def decisions(correcting: dict[Entry, list[int]], stored: dict[Entry, str]) -> dict[Entry, str]:
    links = pl.DataFrame([(*entry, named) for entry, named in correcting.items()], schema=CORRECTING, orient="row")
    pieces = [pl.DataFrame([(*entry, said)], schema=DECIDED, orient="row") for entry, said in stored.items()]
    return {(lsn, meter): said for lsn, meter, said in inherited(links, pieces).iter_rows()}


def test_what_corrects_a_straggler_has_its_decision() -> None:
    assert decisions({(5, "t"): [1]}, {(1, "t"): "drop"}) == {(5, "t"): "drop"}


def test_what_corrects_no_straggler_has_none() -> None:
    assert decisions({(5, "t"): [1], (6, "t"): []}, {(2, "t"): "drop"}) == {}


def test_each_meter_has_its_own() -> None:
    found = decisions({(5, "t"): [1], (5, "r"): [1]}, {(1, "t"): "drop", (1, "r"): "correct"})
    assert found == {(5, "t"): "drop", (5, "r"): "correct"}


def test_a_decision_is_handed_on_over_many_steps() -> None:
    chain = {(lsn, "t"): [lsn - 1] for lsn in range(2, 30)}
    assert set(decisions(chain, {(1, "t"): "drop"}).items()) == {((lsn, "t"), "drop") for lsn in range(2, 30)}


def test_of_two_the_one_that_changes_a_window_holds() -> None:
    found = decisions({(5, "t"): [1, 2], (6, "t"): [5]}, {(1, "t"): "drop", (2, "t"): "correct"})
    assert found == {(5, "t"): "correct", (6, "t"): "correct"}


def test_what_is_stored_of_a_row_that_corrects_is_nothing_to_begin_with() -> None:
    assert decisions({(5, "t"): [1]}, {(1, "t"): "drop", (5, "t"): "correct"}) == {(5, "t"): "drop"}
