"""Events as a provider or gateway sends them, through the code of ingestion, joins and the audit: what is billed then.

No Spark, no Kafka, no database: `HandMade` has the tables.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.streams import Table
from metering.instants import rfc3339
from metering.vocabulary import Disposition
from tests.pipelines.as_billed import Stack
from tests.pipelines.hand_made import START, HandMade
from tests.pipelines.ingestion import validated

MILLION = Decimal(1_000_000)
USAGE, REQUEST, COMPLETION = (f"ai.inference.{kind}.v1" for kind in ("usage", "request", "completion"))
REVERSAL = "ai.inference.reversal.v1"
Prices = Mapping[tuple[str, str], str]
"""By model and meter what a million units cost, from the beginning."""
DRIVERS = ("received_at", "lsn", "log_date", "logged_at", "disposition", "topic", "partition", "offset")
"""Columns of the journal that `HandMade` fills."""


class Sent(HandMade):
    """Account "a", which pays in EUR by the plan "pro"; a new installation that declares what `stack` says.

    `joins` and `ingestion` are more of their configurations.
    """

    def __init__(
        self, folder: Path, stack: Stack, prices: Prices, *, joins: Mapping[str, Any] | None = None, **ingestion: Any
    ) -> None:
        self._stack = stack
        declared = {"contracts": stack.contracts, "conventions": stack.conventions}
        self._ingestion: IngestionConfig = stack.config(IngestionConfig, **declared, **ingestion)
        self._columns: dict[str, pa.DataType] = {}
        super().__init__(folder, **(joins or {}))
        for (model, meter), per_million in prices.items():
            self.price_of(timedelta(), model, meter, per_million)

    def configure(self, **config: Any) -> None:
        super().configure(**config)
        self._config = self._stack.config(JoinsConfig, **config)
        self._held[-1]["rules"] = self._config.deciding

    @property
    def present(self) -> JoinsConfig:
        """What joins is started with."""
        return self._config

    def price_of(self, at: timedelta, model: str, meter: str, per_million: str) -> None:
        """What a million units cost, known since `at` and from the beginning on."""
        self.price(at, f"{Decimal(per_million) / MILLION:f}", begins=timedelta(), model=model, meter=meter)

    def send(
        self,
        at: timedelta,
        data: Mapping[str, Any],
        *,
        kind: str = USAGE,
        name: str | None = None,
        source: str = "gateway/1",
        occurred: timedelta | None = None,
    ) -> str | None:
        """Send an event, which is received at `at`; why it is rejected, None: it is accepted.

        `occurred`: half a minute before that, unless said. `name`: its id.
        """
        time = rfc3339(START + (at - timedelta(seconds=30) if occurred is None else occurred))
        envelope = {"specversion": "1.0", "type": kind, "source": source, "subject": "a", "time": time}
        return self.received(at, json.dumps({**envelope, "id": name or f"e{self._next_lsn}", "data": data}))

    def received(self, at: timedelta, text: str) -> str | None:
        """The same of the text of an event: `reason: violation` where it is rejected."""
        rows = validated([(text.encode(), START + at)], self._ingestion)
        self._columns |= {field.name: field.type for field in rows.to_arrow().schema}
        for row in rows.to_dicts():
            said = {name: value for name, value in row.items() if name not in DRIVERS and value is not None}
            disposition = Disposition.ACCEPTED if row["reason"] is None else Disposition.REJECTED
            self._logged(at, **said, disposition=disposition.value)
        reason = rows["reason"][0]
        return None if reason is None else f"{reason}: {rows['violation'][0]}"

    def bill(self) -> dict[str, tuple[Any, Any]]:
        """By meter what stands: the quantity that was reported, and the amount in EUR."""
        found: defaultdict[str, list[Decimal]] = defaultdict(lambda: [Decimal(0), Decimal(0)])
        for entry in self._entries():
            found[entry["meter"]][0] += entry["sign"] * (entry["quantity"] or 0)
            found[entry["meter"]][1] += entry["sign"] * (entry["amount"] or 0)
        return {meter: (units, amount) for meter, (units, amount) in sorted(found.items()) if units or amount}

    @property
    def amount(self) -> Decimal:
        """What all of it costs."""
        return sum((amount for _, amount in self.bill().values()), Decimal(0))

    @property
    def unpriced(self) -> dict[str, Decimal]:
        """By meter what stands and has no price."""
        found: defaultdict[str, Decimal] = defaultdict(Decimal)
        for entry in self._entries():
            if entry["quantity"] and entry["amount"] is None:
                found[entry["meter"]] += entry["sign"] * entry["quantity"]
        return {meter: units for meter, units in found.items() if units}

    @property
    def outcomes(self) -> dict[str, int]:
        """How many of each stand."""
        rows = pl.DataFrame(DeltaTable(f"{self.tables}/{Table.USAGE}").to_pyarrow_table())
        net = rows.group_by("outcome").agg(pl.sum("sign")).filter(pl.col("sign") != 0)
        return dict(net.sort("outcome").iter_rows())

    def _entries(self) -> list[dict[str, Any]]:
        rows = pl.DataFrame(DeltaTable(f"{self.tables}/{Table.USAGE}").to_pyarrow_table())
        return rows.explode("meters").unnest("meters").filter(pl.col("meter").is_not_null()).to_dicts()

    def _schema(self, table: Table) -> pa.Schema:
        schema = super()._schema(table)
        known = set(schema.names)
        more = [pa.field(name, kind) for name, kind in self._columns.items() if name not in known]
        return pa.schema([*schema, *more]) if table is Table.JOURNAL else schema
