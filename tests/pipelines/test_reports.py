"""Why one report of a request bills: over tables as joins and the audit leave them."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.explain.files import Files
from jobs.explain.records import USAGE, Tables
from jobs.explain.reports import reports_of
from jobs.runtime.effective_rules import IN_FORCE
from jobs.settings.stored_meters import stored
from jobs.streams import Table
from metering.meters import Declaration
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, HandMade
from tests.pipelines.test_audit_restated import Event, audited, completion, happened, request, usage

PARTIAL, ESTIMATED = {"usage_source": "partial"}, {"usage_source": "estimated"}
CASES: dict[str, tuple[list[Event], str, str]] = {
    "status": (
        [usage(MINUTE, "completed", 100, id="e1"), usage(9 * MINUTE, "error", 7, id="e2")],
        "e1",
        "its status completed ranks above error",
    ),
    "usage_source": (
        [
            usage(MINUTE, "completed", 500, usage_source="provider", id="e1"),
            usage(MINUTE, "completed", 9, id="e2", **ESTIMATED),
        ],
        "e1",
        "its usage_source provider ranks above estimated",
    ),
    "a null source is the provider's": (
        [usage(MINUTE, "completed", 1, id="e1", **PARTIAL), usage(MINUTE, "completed", 500, id="e2")],
        "e2",
        "its usage_source provider ranks above partial",
    ),
    "quantities": (
        [usage(MINUTE, "completed", 5, id="e1"), usage(2 * MINUTE, "completed", id="e2")],
        "e1",
        "it reports quantities, the other none",
    ),
    "time": (
        [usage(MINUTE, "completed", 121, id="e1"), usage(2 * MINUTE, "completed", 120, id="e2")],
        "e2",
        "it is the later by time",
    ),
    "two completions of one request": (
        [
            request(timedelta()),
            completion(MINUTE, "cancelled", 4, id="e1"),
            completion(2 * MINUTE, "completed", 9, id="e2"),
        ],
        "e2",
        "its status completed ranks above cancelled",
    ),
}


def reports(world: HandMade) -> list[dict[str, Any]]:
    journal, of_usage = (DeltaTable(f"{world.tables}/{name}") for name in (Table.JOURNAL, Table.USAGE))
    tables = Tables(Files.of(journal, Table.JOURNAL), Files.of(of_usage, Table.USAGE), None, 100)
    lsns = range(1, 1 + len(of_usage.to_pyarrow_table()))
    return reports_of(tables, of_usage, tables.of_usage_only(lsns).select(USAGE))


def told(world: HandMade) -> list[tuple[str, bool, str]]:
    return [(row["id"], row["bills"], row["explanation"]) for row in reports(world)]


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("apart", [HOUR, MINUTE], ids=["beyond the timeout", "within it"])
@pytest.mark.parametrize("is_turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize(("events", "best", "why"), CASES.values(), ids=CASES)
def test_explain_shows_why_one_report_outranks_the_other(
    events: list[Event], best: str, why: str, tmp_path: Path, apart: timedelta, *, is_turned: bool
) -> None:
    received = events[::-1] if is_turned else events
    world = happened(HandMade(tmp_path, best_report_bills=True), received, apart=apart)
    found = reports(world)
    assert {row["id"]: row["bills"] for row in found} == {one: one == best for one in ("e1", "e2")}
    assert {row["explanation"] for row in found} == {f"event {best} bills: {why}"}
    said = {data["id"]: data["output_tokens"] for _, _, data in events if "id" in data}
    reported = {row["id"]: row["quantities"].get("output_tokens") for row in found}
    assert reported == said, "superseded reports say what they reported, too"


def test_each_report_shows_why_it_loses_or_wins(tmp_path: Path) -> None:
    events = [
        usage(MINUTE, "error", 3, id="e1"),
        usage(2 * MINUTE, "completed", 4, id="e2", **PARTIAL),
        usage(3 * MINUTE, "completed", 5, id="e3"),
    ]
    world = happened(HandMade(tmp_path, best_report_bills=True), events, apart=MINUTE)
    assert told(world) == [
        ("e1", False, "event e3 bills: its status completed ranks above error"),
        ("e2", False, "event e3 bills: its usage_source provider ranks above partial"),
        ("e3", True, "event e3 bills: its usage_source provider ranks above partial"),
    ]


def test_before_the_audit_explain_shows_which_report_will_bill(tmp_path: Path) -> None:
    world = HandMade(tmp_path, best_report_bills=True)
    for number, tokens in ((1, 10), (2, 20)):
        at = DAY + number * MINUTE
        _, occurred, data = usage(number * MINUTE, "completed", tokens, id=f"e{number}")
        world.event(at, "both", f"{number}", occurred=occurred, **data)
        world.joined(at + MINUTE / 2)
    world.joined(2 * DAY)
    until = "event e1 bills until the next audit, which prefers event e2: it is the later by time"
    assert told(world) == [("e1", True, until), ("e2", False, until)]
    audited(world, 2 * DAY)
    after = "event e2 bills: it is the later by time"
    assert told(world) == [("e1", False, after), ("e2", True, after)]


def test_explain_shows_that_the_first_report_bills(tmp_path: Path) -> None:
    events = [usage(MINUTE, "error", 7, id="e1"), usage(2 * MINUTE, "completed", 100, id="e2")]
    world = happened(HandMade(tmp_path), events, apart=MINUTE)
    why = "event e1 bills: the first report of a request counts, as best_report_bills was off"
    assert told(world) == [("e1", True, why), ("e2", False, why)]


def test_a_request_with_one_report_has_none_to_compare(tmp_path: Path) -> None:
    world = happened(HandMade(tmp_path, best_report_bills=True), [usage(MINUTE, "completed", 7, id="e1")])
    assert reports(world) == []


def test_a_report_shows_columns_that_only_a_declared_meter_sums(tmp_path: Path) -> None:
    events = [usage(MINUTE, "error", id="e1"), usage(2 * MINUTE, "completed", id="e2")]
    world = happened(HandMade(tmp_path, best_report_bills=True), events, apart=MINUTE)

    def declared(text: str | None) -> str | None:
        said = None if text is None else json.loads(text)
        for held in said[IN_FORCE] if said else ():
            held["rules"]["meters"] = stored([Declaration("gpu", "second", "gpu_seconds")])
        return None if said is None else json.dumps(said)

    gpu_seconds = pl.when(pl.col("id") == "e2").then(pl.lit("1.5").str.to_decimal(scale=6))
    rewritten(f"{world.tables}/{Table.JOURNAL}", gpu_seconds=gpu_seconds)
    rewritten(f"{world.tables}/{Table.USAGE}", rules=pl.col("rules").map_elements(declared, pl.String))
    assert [(row["id"], {name: float(many) for name, many in row["quantities"].items()}) for row in reports(world)] == [
        ("e1", {}),
        ("e2", {"gpu_seconds": 1.5}),
    ]


def rewritten(table: str, **columns: pl.Expr) -> None:
    rows = pl.DataFrame(DeltaTable(table).to_pyarrow_table()).with_columns(**columns)
    write_deltalake(table, rows.to_arrow(), mode="overwrite", schema_mode="overwrite", partition_by=["log_date"])
