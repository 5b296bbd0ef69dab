"""What `weir explain` says of reversals: over tables as joins and the audit leave them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from jobs.explain.files import Files
from jobs.explain.records import USAGE, Tables
from jobs.explain.reversals import reversals_of
from jobs.streams import Table
from tests.pipelines.hand_made import DAY, HOUR, HandMade
from tests.pipelines.test_audit_restated import audited


def told(world: HandMade) -> list[dict[str, Any]]:
    journal, of_usage = (DeltaTable(f"{world.tables}/{name}") for name in (Table.JOURNAL, Table.USAGE))
    tables = Tables(Files.of(journal, Table.JOURNAL), Files.of(of_usage, Table.USAGE), None, 100)
    records = tables._records(range(1, 1 + len(journal.to_pyarrow_table())))
    usage = tables.of_usage_only(range(1, 1 + len(of_usage.to_pyarrow_table()))).select(USAGE)
    return reversals_of(tables, usage, records)


def test_explain_shows_a_reversal_and_whether_an_audit_applied_it(tmp_path: Path) -> None:
    world = HandMade(tmp_path, best_report_bills=True)
    world.event(HOUR, "both", "e", occurred=HOUR, model="m", status="completed", output_tokens=100)
    world.reversal(2 * HOUR, meter="output_tokens", quantity=Decimal("30.50"))
    world.joined(DAY)
    waits = "the next audit does so, if the request bills anything and is within reach"
    [row] = told(world)
    assert (row["request_id"], row["reason"], row["quantity"]) == ("r", "a dispute", Decimal("30.5"))
    assert row["explanation"].endswith(f"takes back 30.5 output_tokens that request r bills: a dispute; {waits}")
    audited(world, DAY)
    [row] = told(world)
    assert row["explanation"].endswith("; an audit has done so by usage 2, 3")
    world.reversal(2 * DAY)
    world.joined(3 * DAY)
    first, second = told(world)
    assert first["explanation"] == row["explanation"]
    assert second["explanation"].endswith(f"takes back all that request r bills: a dispute; {waits}")
