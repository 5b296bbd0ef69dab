"""An outcome has the quantities that the declared meters count or add up, and no other; null where one is missing."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import polars as pl

from jobs.joins.config import JoinsConfig
from jobs.joins.memory import quantity_of
from jobs.joins.quantities import quantities
from jobs.settings.meters import MeterConfig
from metering.meters import DEFAULT

GPU = {
    **{meter.name: JoinsConfig().meters[meter.name] for meter in DEFAULT},
    "gpu_seconds": MeterConfig(unit="second", sum="gpu_seconds"),
    "gpu_hours_asked": MeterConfig(unit="hour", sum="gpu_seconds", expected=True),
    "answers": MeterConfig(unit="answer", count="outcomes"),
}
MATCH = {"outcome": "matched", "input_tokens": Decimal(3), "output_tokens": Decimal(0), "gpu_seconds": Decimal("0.5")}


def counted(outcome: dict[str, Any], meters: dict[str, MeterConfig] = GPU) -> dict[str, Decimal | None]:
    schema = {"outcome": pl.String(), **JoinsConfig(meters=meters).carried}
    named = {name if name == "outcome" else quantity_of(name): value for name, value in outcome.items()}
    rows = quantities(pl.DataFrame([named], schema=schema), JoinsConfig(meters=meters).declared)
    assert rows["row"].to_list() == [0] * len(rows)
    return dict(rows.select("meter", "quantity").iter_rows())


def test_a_match_is_counted_and_what_its_completion_reports_is_added_up() -> None:
    assert counted(MATCH) == {
        "requests": 1,
        "answers": 1,
        "input_tokens": 3,
        "output_tokens": 0,
        "cached_tokens": None,
        "gpu_seconds": Decimal("0.5"),
        "gpu_hours_asked": Decimal("0.5"),
    }


def test_an_optional_quantity_that_is_missing_is_not_counted() -> None:
    found = counted({"outcome": "matched"})
    assert "gpu_seconds" not in found
    assert {name for name, quantity in found.items() if quantity is None} == {
        *("input_tokens", "output_tokens", "cached_tokens", "gpu_hours_asked")
    }


def test_a_request_alone_is_counted_and_a_completion_alone_reports() -> None:
    assert counted({"outcome": "abandoned"}) == {"requests": 1, "answers": 1}
    assert counted({**MATCH, "outcome": "orphaned"}) == {
        "input_tokens": 3,
        "output_tokens": 0,
        "gpu_seconds": Decimal("0.5"),
        "gpu_hours_asked": Decimal("0.5"),
    }


def test_less_than_nothing_is_no_quantity() -> None:
    """Before a meter added it up, a column could be below 0; such a row may wait still."""
    found = counted({**MATCH, "gpu_seconds": Decimal(-100), "input_tokens": Decimal(-1)})
    assert ("gpu_seconds" in found, found["input_tokens"], found["gpu_hours_asked"]) == (False, None, None)


def test_superseded_rows_bill_nobody() -> None:
    assert counted({**MATCH, "outcome": "superseded"}) == {}


def test_a_meter_that_is_not_declared_counts_nothing() -> None:
    assert counted(MATCH, {"answers": GPU["answers"]}) == {"answers": 1}


def test_quantities_stand_by_row_and_meter() -> None:
    schema = {"outcome": pl.String(), **JoinsConfig(meters=GPU).carried}
    match = {name if name == "outcome" else quantity_of(name): value for name, value in MATCH.items()}
    rows = pl.DataFrame([match, {"outcome": "abandoned"}], schema=schema)
    found = quantities(rows, JoinsConfig(meters=GPU).declared)
    assert found.select("row", "meter").rows() == sorted(found.select("row", "meter").rows())
    assert set(found["row"]) == {0, 1}
