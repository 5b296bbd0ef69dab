"""Tables as ingestion and joins leave them, of the few events that a test names, at the times that it says.

The stream's rows come from the functions that joins decides and prices with, at the F and position of each step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from jobs.audit.recompute.basis import pin
from jobs.audit.recompute.expected import OUTCOME, recompute
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.joins.recovery import as_carried, is_paired
from jobs.journal.families import family
from jobs.retention.tables import _remove
from jobs.runtime.delta.table import FRONTIER, LSN, REMOVED, committing, microseconds_of, open_table
from jobs.runtime.effective_rules import IN_FORCE, TRANSACTION, EffectiveRules
from jobs.streams import QUANTITY as UNITS
from jobs.streams import SCHEMAS, Table
from metering.contracts.includes import COLUMN
from metering.contracts.reversals import METER, QUANTITY, REASON
from metering.instants import rfc3339
from metering.price_models import ALIAS_CURRENCY, ALIAS_METER, PricedModel
from metering.vocabulary import Disposition, Family, UsageCause
from tests.simulation.declared import OTHER, OTHER_TYPE

START = datetime(2026, 1, 1, tzinfo=UTC)
JOURNAL = pa.schema(
    [
        *SCHEMAS[Table.JOURNAL],
        pa.field(REASON, pa.string()),
        pa.field(METER, pa.string()),
        pa.field(QUANTITY, UNITS),
        pa.field(COLUMN, pa.string()),
    ]
)
"""With the columns of reversals, which the contract of their type declares, and what an event's convention is."""
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
Row = dict[str, Any]


class HandMade:
    """One account "a" on the plan "pro" in EUR; times are durations since START."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.tables = str(folder)
        self._next_lsn = 1
        self._held: list[Row] = []
        self.configure(**config)
        self._told: dict[str, int] = {}
        self._new: dict[Table, list[Row]] = {Table.JOURNAL: [], Table.ACCOUNTS: [], Table.PRICES: []}
        self.account(timedelta())

    def configure(self, **config: Any) -> None:
        """joins is started with that, and decides by it all that comes from now on."""
        self._config = JoinsConfig(**config)
        self._held.append({"from": self._next_lsn, "since": START.isoformat(), "rules": self._config.deciding})
        self._are_rules_kept = False

    @property
    def accounts(self) -> list[Row]:
        """The versions of the account that came since joins decided last."""
        return self._new[Table.ACCOUNTS]

    def account(self, at: timedelta, **says: Any) -> None:
        """A version of the account; it holds from `at` on, and says UTC where `says` does not."""
        holds = {"account": "a", "plan": "pro", "currency": "EUR", "timezone": "UTC", "deleted": False, **says}
        moment = {"lsn": self._logged(at, topic="catalog.accounts"), "effective_from": START + at}
        self.accounts.append({**moment, "committed_at": START + at, **holds})

    def price(
        self,
        at: timedelta,
        unit_price: str | None,
        *,
        begins: timedelta,
        model: str = "m",
        meter: str = "output_tokens",
    ) -> None:
        """What one output token costs from `begins` on; None withdraws it, as joins of before took a deletion.

        A text that begins with `{` is terms (`metering.price_tiers`).
        """
        said = self._logged(at, topic="catalog.prices")
        key = {"plan": "pro", "model": model, "meter": meter, "currency": "EUR"}
        is_terms = unit_price is not None and unit_price.startswith("{")
        unit = None if unit_price is None or is_terms else Decimal(unit_price)
        holds: dict[str, Any] = {"effective_from": START + begins, "unit_price": unit, "deleted": unit_price is None}
        holds |= {"terms": unit_price} if is_terms else {}
        self._new[Table.PRICES].append({**key, **holds, "lsn": said})

    def deleted(self, at: timedelta, *, begins: timedelta, ends: timedelta, model: str = "m") -> None:
        """That price is deleted as of `ends`."""
        self.price(at, None, begins=begins, model=model)
        self._new[Table.PRICES][-1]["ends_at"] = START + ends

    def alias(self, at: timedelta, name: str, model: str, *, begins: timedelta, ends: timedelta | None = None) -> None:
        """A name has the prices of a model from `begins` on; with `ends` it ends then."""
        text = PricedModel.alias(name, model).text
        if ends is None:
            self.price(at, "0", begins=begins, model=text)
        else:
            self.deleted(at, begins=begins, ends=ends, model=text)
        self._new[Table.PRICES][-1] |= {"meter": ALIAS_METER, "currency": ALIAS_CURRENCY}

    def request(
        self,
        at: timedelta,
        identity: str | None = None,
        *,
        name: str = "r",
        model: str = "m",
        first: timedelta | None = None,
    ) -> None:
        """A request is accepted; one with the identity of another is a repeat that ingestion did not know.

        `first`: when it was first received, and occurred, if it was a dead letter.
        """
        self._event(at, Family.REQUEST, identity, first, request_id=name, model=model)

    def completion(
        self, at: timedelta, identity: str | None = None, *, name: str = "r", first: timedelta | None = None
    ) -> None:
        """Its completion is accepted, with 100 output tokens."""
        self._event(at, Family.COMPLETION, identity, first, request_id=name, status="completed", output_tokens=100)

    def event(
        self, at: timedelta, kind: str, identity: str, *, occurred: timedelta, name: str = "r", **data: Any
    ) -> None:
        """An event of a family that says when it occurred, and what else it reports."""
        self._event(at, Family(kind), identity, None, event_time=START + occurred, request_id=name, **data)

    def reversal(
        self,
        at: timedelta,
        identity: str | None = None,
        *,
        name: str = "r",
        meter: str | None = None,
        quantity: Decimal | None = None,
        first: timedelta | None = None,
    ) -> None:
        """A reversal is accepted: of all that the request bills, or of one meter all or so much."""
        said = {"reversal_reason": "a dispute", "reversal_meter": meter, "reversal_quantity": quantity}
        self._event(at, Family.REVERSAL, identity, first, request_id=name, **said)

    def unknown(self, at: timedelta, *, name: str, **more: Any) -> None:
        """An event of a type without a contract, accepted as it is: the same content whenever it comes."""
        data = {"request_id": name, "model": "m", "status": "completed", "output_tokens": 100, **more}
        said = {"specversion": "1.0", "id": name, "source": "s", "type": OTHER_TYPE, "subject": "a", "data": data}
        value = json.dumps({**said, "time": rfc3339(START + HOUR)}).encode()
        digest = sha256(name.encode()).digest()[:16]
        self._logged(at, event_time=START + at, identity=digest, type=OTHER_TYPE, account="a", value=value)

    def contract(self, at: timedelta, **config: Any) -> None:
        """ingestion gets the contract of that type; before, it had those that Weir ships, and `config`, too."""
        before, after = (IngestionConfig.model_validate({**config, **more}) for more in ({}, {"contracts": [OTHER]}))
        held = ((1, before.deciding), (self._next_lsn, after.deciding))
        said = [{"from": first, "since": START.isoformat(), "rules": rules} for first, rules in held]
        self._told = {TRANSACTION: self._logged(at, topic="events", rules=json.dumps({IN_FORCE: said}))}

    def _event(
        self, at: timedelta, kind: Family, identity: str | None, first: timedelta | None = None, **data: Any
    ) -> None:
        digest = sha256((identity or f"{self._next_lsn}").encode()).digest()[:16]
        said = {"type": f"ai.inference.{kind}.v1", "family": kind.value, "account": "a", "user_id": "u"}
        came_back = {} if first is None else {"first_received_at": START + first}
        at_once = {"event_time": START + (first or at), "identity": digest}
        self._logged(at, **at_once | said | came_back | data)

    def _logged(self, at: timedelta, **row: Any) -> int:
        instant, lsn = START + at, self._next_lsn
        place = {"topic": "events", "partition": 0, "offset": lsn, "lsn": lsn, "log_date": instant.date()}
        at_once = {"received_at": instant, "logged_at": instant, "disposition": Disposition.ACCEPTED.value}
        self._new[Table.JOURNAL].append({**place, **at_once, **row})
        self._next_lsn += 1
        return lsn

    def joined(self, until: timedelta) -> None:
        """Time comes to `until`, and joins decides by all that came."""
        frontier = START + until
        for table, rows in self._new.items():
            end = rows[-1]["lsn"] + 1 if rows else None
            told = self._told if table is Table.JOURNAL else {}
            self._append(table, rows, {} if end is None else {LSN: end} | told)
            rows.clear()
        usage = open_table(self.tables, Table.USAGE)
        if usage is None:
            self._append(Table.USAGE, [], {LSN: 1})
            usage = open_table(self.tables, Table.USAGE)
            assert usage is not None
        first = {} if self._are_rules_kept else {"rules": json.dumps({IN_FORCE: self._held})}
        rows = self._decided(usage, frontier)
        lsn = usage.transaction_version(LSN) or 1
        numbered = [
            {**row, "lsn": number, "log_date": frontier.date(), "logged_at": frontier, "sign": 1, "cause": "stream"}
            for number, row in enumerate(rows, lsn)
        ]
        if numbered:
            numbered[0] |= first
            self._are_rules_kept = True
        rules = {TRANSACTION: lsn} if numbered and first else {}
        moved = {LSN: lsn + len(rows), Table.JOURNAL.value: self._next_lsn, FRONTIER: microseconds_of(frontier)}
        self._append(Table.USAGE, numbered, {**moved, **rules})

    def _decided(self, usage: DeltaTable, frontier: datetime) -> list[Row]:
        pinned = pin(usage, [], self.tables, self._config)
        history = tuple(EffectiveRules(held["from"], held["rules"]) for held in self._held)
        pinned = replace(pinned, position=self._next_lsn, frontier=frontier, history=history)
        journal = pl.DataFrame(DeltaTable(f"{self.tables}/{Table.JOURNAL}").to_pyarrow_table()).filter(is_paired())
        made = pl.DataFrame(usage.to_pyarrow_table())
        known = made.filter(pl.col("cause") == UsageCause.STREAM.value)
        found = known.select(*OUTCOME, pl.col("lsn").alias("usage_lsn"))
        every = recompute(as_carried(journal.with_columns(family()), pinned.schema), found, pinned)
        return every.join(known, on=OUTCOME, how="anti", nulls_equal=True).sort("received_at").to_dicts()

    def removed(self, before: timedelta) -> None:
        """`weir retain` removes the log dates before that day."""
        for name in (Table.JOURNAL, Table.USAGE):
            table = DeltaTable(f"{self.tables}/{name}")
            rows = pl.DataFrame(table.to_pyarrow_table(columns=["log_date"])).group_by("log_date").len()
            for day, many in sorted(rows.iter_rows()):
                if day < (START + before).date():
                    _remove(table, day, many)

    def billed(self) -> dict[tuple[Any, ...], Decimal]:
        """Output tokens that are billed, by day, model and unit price; those without a price have None."""
        rows = pl.DataFrame(DeltaTable(f"{self.tables}/{Table.USAGE}").to_pyarrow_table()).explode("meters")
        found: dict[tuple[Any, ...], Decimal] = {}
        for row in rows.unnest("meters").filter(pl.col("meter") == "output_tokens").to_dicts():
            unit = row["unit_price"]
            key = ((row["day"] - START.date()).days, row["model"], None if unit is None else f"{unit.normalize():f}")
            found[key] = found.get(key, Decimal()) + row["sign"] * row["quantity"]
        return {key: quantity for key, quantity in found.items() if quantity}

    def _append(self, table: Table, rows: Iterable[Row], transactions: dict[str, int]) -> None:
        schema = self._schema(table)
        whole = [{field.name: row.get(field.name) for field in schema} for row in rows]
        is_logged = table in (Table.JOURNAL, Table.USAGE)
        created = {} if DeltaTable.is_deltatable(f"{self.tables}/{table}") else {REMOVED: 0}
        write_deltalake(
            f"{self.tables}/{table}",
            pa.Table.from_pylist(whole, schema=schema),
            mode="append",
            partition_by=["log_date"] if is_logged else None,
            schema_mode="merge",
            commit_properties=committing(created | transactions),
        )

    def _schema(self, table: Table) -> pa.Schema:
        """The columns of its rows."""
        return SCHEMAS[table] if table is not Table.JOURNAL else JOURNAL
