"""The guide's page of contents that count once: what it says is billed is billed, before the audit and after it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import yaml
from deltalake import DeltaTable

from catalog.file import parse_catalog
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from tests.pages import DOCS, blocks_in
from tests.pipelines.hand_made import START, HandMade
from tests.pipelines.ingestion import rows_of
from tests.simulation.audits import audit

PAGE = DOCS / "how-to/cached-answers.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) × [\d.]+(?: / [\d,]+)? \| ([\d.]+) \|$", re.MULTILINE)
TOTAL = re.compile(r"^\| \*\*total\*\* \| \| \| \*\*([\d.]+)\*\* \|$", re.MULTILINE)
REPORTED = ("model", "status", "content_hash", "input_tokens", "output_tokens")


def number(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def sums(world: HandMade) -> dict[str, tuple[Decimal, Decimal]]:
    """By meter what usage bills, and for how much."""
    rows = pl.DataFrame(DeltaTable(f"{world.tables}/usage").to_pyarrow_table()).explode("meters").unnest("meters")
    found: dict[str, tuple[Decimal, Decimal]] = {}
    for row in rows.to_dicts():
        quantity, amount = found.get(row["meter"], (Decimal(), Decimal()))
        found[row["meter"]] = (quantity + row["sign"] * row["quantity"], amount + row["sign"] * row["amount"])
    return found


def test_the_example_bills_the_amounts_of_its_page(tmp_path: Path) -> None:
    declared, events, catalog = (block.text for block in blocks_in(TEXT, PAGE.name))
    meters = yaml.safe_load(declared)["meters"]
    config = JoinsConfig.model_validate({"meters": meters, "best_report_bills": True})
    world = HandMade(tmp_path, meters=meters, best_report_bills=True)
    for price in parse_catalog(catalog).prices:
        unit_price = f"{price.unit_price:f}"
        world.price(timedelta(), unit_price, begins=timedelta(), model=price.model, meter=price.meter)
    noon = datetime.fromisoformat("2026-11-21T12:00:00Z")
    validated = rows_of([(line.encode(), noon) for line in events.splitlines()], IngestionConfig(meters=meters))
    for row in validated:
        assert row["reason"] is None
        said = {name: row[name] for name in REPORTED}
        occurred = row["event_time"] - START
        world.event(noon - START, row["family"], row["id"], occurred=occurred, name=row["request_id"], **said)
    world.joined(noon - START + timedelta(hours=1))
    lines = {
        meter: (number(before), number(after), number(amount)) for meter, before, after, amount in ROW.findall(TEXT)
    }
    assert set(lines) == set(meters)
    assert {meter: quantity for meter, (quantity, _) in sums(world).items()} == {
        meter: before for meter, (before, _, _) in lines.items()
    }
    found = audit(world.tables, noon + timedelta(days=1), present=config)
    assert found is not None
    assert [fault for fault in found.faults if isinstance(fault, dict)] == []
    assert sums(world) == {meter: (after, amount) for meter, (_, after, amount) in lines.items()}
    assert [number(total) for total in TOTAL.findall(TEXT)] == [sum(amount for _, _, amount in lines.values())]
