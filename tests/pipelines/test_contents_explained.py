"""What `weir explain` says of outcomes that do not count, as another one of their content does."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from jobs.explain.contents import contents_of
from jobs.explain.files import Files
from jobs.explain.records import Tables
from jobs.streams import Table
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, HandMade
from tests.pipelines.test_audit_once_per import METERS, REQUESTS, TOKENS, Report, Reversal, audited, world_of


def told(world: HandMade) -> list[dict[str, Any]]:
    journal, of_usage = (DeltaTable(f"{world.tables}/{name}") for name in (Table.JOURNAL, Table.USAGE))
    tables = Tables(Files.of(journal, Table.JOURNAL), Files.of(of_usage, Table.USAGE), None, 100)
    usage = tables.of_usage_only(range(1, 1 + len(of_usage.to_pyarrow_table())))
    return contents_of(tables, of_usage, usage)


def test_explain_names_the_outcome_that_counted_in_the_place_of_another(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    for name, minutes in (("a", 5), ("b", 10), ("c", 70)):
        Report(name, minutes * MINUTE, "x").received(world, DAY + minutes * MINUTE)
    world.joined(DAY + 2 * HOUR)
    assert told(world) == []
    audited(world, DAY + 2 * HOUR)
    rows = told(world)
    assert {(row["request_id"], row["meter"], row["column"]) for row in rows} == {
        ("b", REQUESTS, "content_hash"),
        ("b", TOKENS, "content_hash"),
    }
    (of_requests,) = [row["explanation"] for row in rows if row["meter"] == REQUESTS]
    assert of_requests.startswith(
        "requests counts 0 of request b: another outcome of the same content_hash counted in its PT1H from "
        "2026-01-01T00:00:00Z, that of request a (event "
    )
    assert of_requests.endswith(", 2026-01-01T00:05:00Z)")
    Reversal("a").received(world, 2 * DAY)
    world.joined(3 * DAY)
    audited(world, 3 * DAY)
    assert told(world) == []


@pytest.mark.parametrize("is_audited_first", [True, False])
def test_a_credited_quantity_is_not_reported_as_superseded(tmp_path: Path, *, is_audited_first: bool) -> None:
    """A credit of a part of what gives way takes nothing back: the other outcome is the reason."""
    world = world_of(tmp_path)
    for name, minutes in (("a", 5), ("b", 10), ("c", 15)):
        Report(name, minutes * MINUTE, "x").received(world, DAY + minutes * MINUTE)
    world.joined(DAY + HOUR)
    if is_audited_first:
        audited(world, DAY + HOUR)
    Reversal("a", TOKENS, 6).received(world, DAY + 2 * HOUR)
    Reversal("a", TOKENS, 4).received(world, DAY + 2 * HOUR)
    Reversal("c", TOKENS, 4).received(world, DAY + 2 * HOUR)
    world.joined(2 * DAY)
    audited(world, 2 * DAY)
    said = {(row["request_id"], row["meter"]): row["explanation"] for row in told(world)}
    assert said.keys() == {("b", REQUESTS), ("c", REQUESTS), ("c", TOKENS)}
    assert "that of request b (event" in said["c", TOKENS]


def test_a_report_of_0_is_not_superseded_by_itself(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    Report("a", MINUTE, "x", 7, "cancelled").received(world, DAY)
    world.joined(DAY + HOUR)
    Report("a", 2 * MINUTE, "x", 0).received(world, DAY + 2 * HOUR)
    world.joined(2 * DAY)
    audited(world, 2 * DAY)
    assert told(world) == []


def test_contents_are_not_read_unless_a_meter_counts_them_once(tmp_path: Path) -> None:
    each = {name: {key: said for key, said in meter.items() if key != "once_per"} for name, meter in METERS.items()}
    world = world_of(tmp_path, meters=each)
    Report("a", timedelta(), "x").received(world, DAY)
    world.joined(DAY + HOUR)
    assert told(world) == []
