"""The rows of usage that the driver reads: rows that correct others, and rows around some corrections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.audit.bills.chains import Chain
from jobs.audit.bills.decisions import CORRECTING, ENTRY, IS_BILLED, Decisions, inherited_decisions
from jobs.audit.bills.expected import OF_WINDOW, WINDOWS, bills, correcting
from jobs.audit.bills.holds import JOURNALED, journaled_decisions
from jobs.audit.tables.database import Billed, decided
from jobs.billing.rules import holds
from jobs.billing.sums import COLUMNS
from jobs.usage_entries import METERED_COLUMNS, metered
from metering.vocabulary import UsageCause
from metering.windows import MINUTE

Outside = list[tuple[int, Decimal, Decimal | None]]
"""(usage lsn, signed quantity, unit price) of each entry."""


def decisions(usage: DeltaTable, billed: Billed) -> Decisions:
    """Of all usage that is billed and not of the stream: few rows, and most files say that they have none."""
    is_one = pc.field("cause") != UsageCause.STREAM.value
    correct, journaled = [pl.DataFrame(schema=CORRECTING)], [pl.DataFrame(schema=JOURNALED)]
    for rows in _read(usage, billed, is_one):
        correct.append(correcting(rows, billed.rules))
        journaled.append(journaled_decisions(rows))
    return Decisions(inherited_decisions(pl.concat(correct), decided(billed)), pl.concat(journaled), billed.frontier)


def outside_corrections(
    usage: DeltaTable, billed: Billed, decided: Decisions, chains: list[Chain]
) -> list[Outside | None]:
    """Of each chain what is in its window, and in none of its corrections.

    None where something of that may have come into the window later than it came into usage: it corrects what waited.
    """
    keys = pl.DataFrame(
        [(*chain.window, number) for number, chain in enumerate(chains)],
        schema={**{name: WINDOWS[name] for name in OF_WINDOW}, "number": pl.Int64()},
        orient="row",
    )
    starts = keys["window_start"].to_list()
    waits = {meter for effective in billed.rules for meter in holds(effective.rules)}
    late = set(decided.inherited.filter(pl.col("meter").is_in(list(waits))).select(ENTRY).iter_rows())
    unknown = set()
    is_near = (pc.field("event_time") >= min(starts)) & (pc.field("event_time") < max(starts) + MINUTE)
    found: defaultdict[int, Outside] = defaultdict(list)
    for rows in _read(usage, billed, is_near):
        alone = bills(rows, billed.rules, decided).alone
        entries = _entries(rows).join(keys, on=OF_WINDOW, nulls_equal=True)
        in_windows = entries.join(
            alone.filter(~IS_BILLED).select(*ENTRY), left_on=["lsn", "meter"], right_on=ENTRY, how="anti"
        )
        for number, lsn, quantity, price in in_windows.select("number", "lsn", "quantity", "unit_price").iter_rows():
            if lsn not in chains[number].named:
                found[number].append((lsn, quantity, price))
                unknown |= {number} if (lsn, chains[number].meter) in late else set()
    return [None if number in unknown else found[number] for number in range(len(chains))]


def _entries(usage: pa.Table) -> pl.DataFrame:
    """Signed quantities of each row of usage."""
    rows = pl.DataFrame(usage).lazy()
    placed = rows.with_columns(window_start=pl.col("event_time").dt.truncate("1m").cast(WINDOWS["window_start"]))
    names = ("lsn", "sign", "outcome", *OF_WINDOW[:3], "currency")
    stored = [name for name in METERED_COLUMNS if name in usage.column_names]
    quantity = pl.col("quantity")
    return (
        metered(placed.select(*names, *stored))
        .filter(quantity != 0)
        .with_columns(quantity=pl.when(pl.col("sign") < 0).then(-quantity).otherwise(quantity))
        .collect()
    )


def _read(usage: DeltaTable, billed: Billed, condition: pc.Expression) -> Iterator[pa.Table]:
    """Billed rows of usage that fulfil a condition, some at a time."""
    names = [field.name for field in usage.schema().fields if field.name in COLUMNS]
    is_billed = pc.field("lsn") < billed.position
    for batch in usage.to_pyarrow_dataset().to_batches(columns=names, filter=condition & is_billed):
        if len(batch):
            yield pa.Table.from_batches([batch])
