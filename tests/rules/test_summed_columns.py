"""A meter sums any column of a contract, whatever its name: counted and priced, or refused when it is declared."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pydantic import ValidationError

from jobs.joins.catalog_versions import account_versions, price_versions
from jobs.joins.config import JoinsConfig
from jobs.joins.dimensions import dimensions
from jobs.joins.memory import CARRIED, Memory
from jobs.joins.pricing import price
from jobs.joins.recovery import as_carried
from jobs.joins.resolve import resolve
from jobs.joins.usage_rows import usage_rows
from jobs.settings.outcome_columns import OF_OUTCOMES
from jobs.streams import ACCOUNTS, PRICES, USAGE
from metering.contracts.includes import COLUMN
from metering.contracts.keywords import COLUMNS, RESERVED
from metering.joining import FINAL
from metering.vocabulary import Family

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ON_THE_WAY = (
    *("row", "meter", "quantity", "side", "request", "completion", "request_us", "completion_us", "first_us"),
    "superseded",
)
OF_PRICES = ("unit_price", "version_lsn", "settled_lsn", "decided_lsn", "event_us", "effective_us", "versions")
NAMES = {*USAGE.names, *CARRIED, *ON_THE_WAY, *OF_PRICES, "key_hash", "gpu_seconds"} - RESERVED - COLUMNS.keys()
IN_FORCE = {"effective_from": NOON, "deleted": False, "currency": "EUR", "plan": "pro"}
EVENT = {"account": "acme", "request_id": "r", "model": "sonnet", "event_time": NOON, "received_at": NOON, COLUMN: None}


def counted(config: JoinsConfig, **said: Any) -> dict[str, Any]:
    accounts = pa.Table.from_pylist([{**IN_FORCE, "lsn": 1, "account": "acme"}], schema=ACCOUNTS)
    prices = [{**IN_FORCE, "lsn": 2, "model": "sonnet", "meter": "units", "unit_price": Decimal("0.5")}]
    row = {**EVENT, "lsn": 3, "family": Family.BOTH, "timeout_us": 1, "merit": FINAL, "remembered": False, **said}
    known = as_carried(pl.DataFrame([row], infer_schema_length=None), config.carried)
    outcomes = resolve(
        known.select(
            pl.lit(None, kind).alias(name) if name not in known.columns else pl.col(name).cast(kind)
            for name, kind in config.carried.items()
        ),
        None,
    )
    catalog = account_versions(accounts), price_versions(pa.Table.from_pylist(prices, schema=PRICES))
    priced = price(outcomes, config.declared, *catalog).append_column("day", pa.array([NOON.date()]))
    [usage] = usage_rows(priced, 1, NOON, None).to_pylist()
    return dict(usage)


@pytest.mark.parametrize("column", sorted(NAMES))
def test_a_column_is_summed_or_its_meter_is_refused(column: str) -> None:
    meters = {"units": {"unit": "unit", "sum": column}}
    if column in OF_OUTCOMES:
        with pytest.raises(ValidationError, match=f"an outcome has a {column} of its own"):
            JoinsConfig.model_validate({"meters": meters})
        return
    usage = counted(JoinsConfig.model_validate({"meters": meters}), **{column: Decimal("1.5")})
    [entry] = usage.pop("meters")
    assert (entry["quantity"], entry["amount"]) == (Decimal("1.5"), Decimal("0.75"))
    assert {name: usage[name] for name in ("plan", "currency", "sign")} == {"plan": "pro", "currency": "EUR", "sign": 1}
    # What only earlier releases filled stays empty, also where it has the column's name.
    assert usage.get(column) is None


def test_what_is_shipped_can_be_summed() -> None:
    assert not OF_OUTCOMES & {"input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"}


@pytest.mark.parametrize("name", ["side", "timeout_us_right", "settled_lsn", "decided_lsn", "key_hash", "neutral"])
@pytest.mark.parametrize("said", ["request", "none", None])
def test_a_column_of_any_name_appears_once_with_its_outcome_in_later_batches(name: str, said: str | None) -> None:
    """One that was called as a column of joins' own made an outcome come again, or never."""
    config = JoinsConfig.model_validate({"meters": {"units": {"unit": "unit", "sum": "units"}}, "dimensions": [name]})
    memory, told = Memory.empty(config.carried), []
    nothing: dict[str, Any] = dict.fromkeys(("user_id", "status", "first_received_at"))
    for lsn, family in ((1, "request"), (2, "completion"), (3, "request"), (4, "request")):
        at = NOON + timedelta(seconds=lsn)
        row = {**EVENT, "lsn": lsn, "family": family, "request_id": "r" if lsn < 3 else f"r{lsn}", "received_at": at}
        batch = pl.DataFrame([{**row, name: said, "units": Decimal(lsn), **nothing}])
        known = as_carried(batch.with_columns(pl.col(name).cast(pl.String)), config.carried)
        waits = {"timeout_us": pl.lit(60_000_000, pl.Int64), "merit": pl.lit(FINAL, pl.Int8)}
        involved = memory.involved(known.with_columns(**waits), NOON)
        outcomes = resolve(involved, NOON)
        memory = memory.after(involved, outcomes, NOON)
        told += outcomes.with_columns(dimensions([name])).to_dicts()
    assert [(row["outcome"], row["request_lsn"], row["completion_lsn"]) for row in told] == [("matched", 1, 2)]
    assert told[0]["quantity:units"] == 2
    assert told[0]["dimensions"] == (None if said is None else json.dumps({name: said}, separators=(",", ":")))
    assert memory.rows["lsn"].to_list() == [3, 4]
