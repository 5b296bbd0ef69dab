"""What corrects others has the decision of what it corrects, meter by meter, over as many steps as there are."""

from __future__ import annotations

import polars as pl

from jobs.audit.bills.decisions import CORRECTING, DECIDED, inherited_decisions

Entry = tuple[int, str]


def decisions(
    correcting: dict[Entry, list[int]],
    stored: dict[Entry, str],
    negating: dict[Entry, int] | None = None,
    cause: str = "rejoined",
) -> dict[Entry, str]:
    rows = [(*entry, 1, cause, named) for entry, named in correcting.items()]
    rows += [(*entry, -1, cause, [named]) for entry, named in (negating or {}).items()]
    links = pl.DataFrame(rows, schema=CORRECTING, orient="row")
    pieces = [pl.DataFrame([(*entry, said)], schema=DECIDED, orient="row") for entry, said in stored.items()]
    return {(lsn, meter): said for lsn, meter, said in inherited_decisions(links, pieces).iter_rows()}


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


def test_of_two_decisions_the_one_that_changes_a_window_wins() -> None:
    found = decisions({(5, "t"): [1, 2], (6, "t"): [5]}, {(1, "t"): "drop", (2, "t"): "correct"})
    assert found == {(5, "t"): "correct", (6, "t"): "correct"}


def test_a_correcting_row_begins_without_a_decision() -> None:
    assert decisions({(5, "t"): [1]}, {(1, "t"): "drop", (5, "t"): "correct"}) == {(5, "t"): "drop"}


def test_a_replacement_of_timely_usage_is_always_billed() -> None:
    negating = {(3, "t"): 1, (4, "t"): 2}
    for decision in ("correct", "approve", "hold", "drop", "reject"):
        assert decisions({(5, "t"): [1, 2]}, {(2, "t"): decision}, negating) == {(4, "t"): decision}


def test_what_replaces_that_in_turn_is_billed_too() -> None:
    found = decisions({(5, "t"): [1, 2], (8, "t"): [5, 6]}, {(2, "t"): "drop", (6, "t"): "drop"}, {(3, "t"): 1})
    assert found == {}


def test_usage_that_came_on_time_without_a_quantity_of_the_meter_has_nothing_billed() -> None:
    """Nothing of that meter is negated, so the straggler alone decides; but a better report is billed as a whole."""
    named, dropped = {(5, "t"): [1, 2], (5, "r"): [1, 2]}, {(2, "t"): "drop", (2, "r"): "drop"}
    assert decisions(named, dropped, {(3, "r"): 1}) == {(5, "t"): "drop"}
    assert decisions(named, dropped, {(3, "r"): 1}, "restated") == {}
    assert decisions(named, dropped, {(4, "t"): 2}, "restated") == {(4, "t"): "drop", **dict.fromkeys(named, "drop")}
