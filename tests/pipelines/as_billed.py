"""What a bill says of a few events: validated, joined, priced and billed by the functions that the applications call.

No Spark, no Kafka: events come as the lines of a file, the catalog as that of `weir catalog apply`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa

from cli.output import Row
from cli.reading import read_only
from jobs.audit.recompute.expected import Pinned
from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB
from jobs.billing.sums import COLUMNS, sums
from jobs.ingestion.config import IngestionConfig
from jobs.joins import usage_rows as rows_of_usage
from jobs.joins.billing_days import BillingDays
from jobs.joins.catalog_versions import account_versions, price_versions
from jobs.joins.config import JoinsConfig
from jobs.joins.decide import Known, decide
from jobs.joins.price_ladders import PriceLadders
from jobs.queries.usage import UsageQuery, usage_rows
from jobs.replay.assumptions import Assumptions
from jobs.runtime.effective_rules import EffectiveRules
from jobs.streams import ACCOUNTS, PRICES, USAGE
from metering.vocabulary import Disposition
from tests.pipelines.folding import fold_table
from tests.pipelines.ingestion import Record, validated

LIMIT_BYTES = 1 << 30
ALL_DECIDED_AFTER = timedelta(hours=1)
"""More than any report waits for a better one: F once nothing waits any more."""


@dataclass(frozen=True)
class Stack:
    """What `meters`, `dimensions`, `contracts`, `conventions` and `price_attributes` of a configuration declare.

    Without `meters` it has those of a new installation.
    """

    meters: Mapping[str, Any] | None = None
    dimensions: tuple[str, ...] = ()
    contracts: tuple[dict[str, Any], ...] = ()
    conventions: tuple[dict[str, Any], ...] = ()
    price_attributes: tuple[Any, ...] = ()

    def config(self, of: type[Any], **more: Any) -> Any:
        """The configuration of a job of a new installation."""
        same = {name: getattr(self, name) for name in ("meters", "dimensions", "price_attributes")}
        config = of.model_validate({**{name: given for name, given in same.items() if given is not None}, **more})
        return config.settled((), is_new=True) if hasattr(config, "settled") else config


def billed(
    database: str,
    stack: Stack,
    events: Sequence[Record],
    *,
    account: Mapping[str, Any],
    unit_prices: Mapping[tuple[str, str], str],
    since: datetime,
    is_supposed: bool = False,
) -> list[dict[str, Any]]:
    """Bill events (value, received_at) of one account, whose plan has `unit_prices` by model and meter `since` then.

    One that begins with `{` has terms instead (`metering.price_tiers`).

    With `is_supposed` its prices are those of a replay. Returns what was validated of them: all columns, and `lsn`.
    """
    rows, usage = decided(stack, events, account=account, unit_prices=unit_prices, since=since, is_supposed=is_supposed)
    PriceLadders(database).store(_table(PRICES, _prices(account, unit_prices, since)))
    _bill(database, usage, stack.config(BillingConfig))
    return rows.to_dicts()


def decided(
    stack: Stack,
    events: Sequence[Record],
    *,
    account: Mapping[str, Any],
    unit_prices: Mapping[tuple[str, str], str],
    since: datetime,
    is_supposed: bool = False,
) -> tuple[pl.DataFrame, pa.Table]:
    """What ingestion makes of the events, and joins of that: rows of the journal, and of usage."""
    ingestion: IngestionConfig = stack.config(IngestionConfig, contracts=stack.contracts, conventions=stack.conventions)
    joins: JoinsConfig = stack.config(JoinsConfig)
    first = len(unit_prices) + 2
    rows = validated(events, ingestion).with_columns(
        lsn=pl.int_range(pl.len(), dtype=pl.Int64) + first,
        disposition=pl.when(pl.col("reason").is_null())
        .then(pl.lit(Disposition.ACCEPTED.value))
        .otherwise(pl.lit(Disposition.REJECTED.value)),
        frontier=pl.col("received_at").max() + ALL_DECIDED_AFTER,
    )
    known = Known.derived(None, (), EffectiveRules(1, joins.deciding), joins.carried)
    outcomes, _ = decide(known, rows, joins.deciding, LIMIT_BYTES, ends_table=True)
    accounts = _table(ACCOUNTS, [{**account, "lsn": first - 1, "effective_from": since, "committed_at": since}])
    prices = _table(PRICES, _prices(account, unit_prices, since))
    if is_supposed:
        live = Pinned(first, None, (EffectiveRules(1, joins.deciding),), (), accounts, PRICES.empty_table())
        prices = Assumptions(prices=prices).pinned(live).prices
    versions = account_versions(accounts, joins.of_accounts), price_versions(prices)
    return rows, rows_of_usage.usage_rows(
        rows_of_usage.priced(outcomes, joins, *versions, BillingDays(accounts)), 1, since, None
    )


def listed(database: str, query: UsageQuery) -> list[Row]:
    """What `weir usage` lists."""
    with read_only(database) as connection:
        return list(usage_rows(connection, query))


def by_meter(rows: Iterable[Row]) -> dict[Any, tuple[Any, Any, Any]]:
    """(quantity, amount, unpriced quantity) by meter."""
    return {row["meter"]: (row["quantity"], row["amount"], row["unpriced_quantity"]) for row in rows}


def _bill(database: str, usage: pa.Table, config: BillingConfig) -> None:
    staged = sums(usage.select([name for name in USAGE.names if name in COLUMNS]), EffectiveRules(1, config.deciding))
    with psycopg.connect(database) as connection:
        fold_table(connection, JOB, staged, config, next_position=len(usage) + 1)


def _prices(
    account: Mapping[str, Any], unit_prices: Mapping[tuple[str, str], str], since: datetime
) -> list[dict[str, Any]]:
    of_plan = {"plan": account["plan"], "currency": account["currency"], "effective_from": since}
    return [
        {**of_plan, "model": model, "meter": meter, "lsn": lsn}
        | ({"terms": unit_price} if unit_price.startswith("{") else {"unit_price": Decimal(unit_price)})
        for lsn, ((model, meter), unit_price) in enumerate(unit_prices.items(), start=1)
    ]


def _table(schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    whole = [{"deleted": False, **row} for row in rows]
    return pa.Table.from_pylist(whole, schema=schema)
