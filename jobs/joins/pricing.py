"""Outcomes → priced usage rows: the contract and the prices in force at `event_time`, as known when it was decided.

`account_as_of` and `price_as_of` in `metering.pricing` say the same in Python. Both catalogs are broadcast: nothing is
shuffled.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.streams import USAGE
from metering.meters import Meter
from metering.words import UsageCause

ADDED_BY_SINK = ("lsn", "log_date", "logged_at", "day", "rules")
PRICED = tuple(name for name in USAGE.names if name not in ADDED_BY_SINK)
"""The columns of `usage` that `price` gives; the sink numbers the rows."""


def _as_of(name: str, is_settled: str) -> str:
    """The version that holds: nearly always the current one; the search, which Spark interprets, is the exception."""
    return f"""IF({is_settled}, {name}_current, get(filter({name}_versions, v ->
        v.lsn < decided_lsn AND coalesce(v.superseded_lsn, decided_lsn) >= decided_lsn AND v.effective_us <= event_us
        ), 0))"""


def _metered(meter: Meter) -> list[str]:
    unit = f"{meter}_unit"
    return [
        meter,
        f"IF({meter} IS NULL, null, {unit}.lsn) AS {meter}_price_version",
        f"IF({meter} IS NULL, null, {unit}.unit_price) AS {meter}_unit_price",
        # 17 + 20 + 1 digits are just the 38 there are, so Spark keeps all 12 decimals.
        f"CAST({meter} AS DECIMAL(17, 0)) * {unit}.unit_price AS {meter}_amount",
    ]


def price(outcomes: DataFrame, accounts: DataFrame, prices: DataFrame) -> DataFrame:
    """Outcomes (`resolve`) and the frames of `catalog_frames` → PRICED, one row per outcome, `sign` 1, cause `stream`.

    Without an account, a model, a price or a quantity, and for superseded and waiting rows, price and amount are null.
    """
    is_contract_settled = "decided_lsn > settled_lsn AND event_us >= settled_us"
    is_price_settled = "decided_lsn > prices_settled_lsn AND event_us >= prices_settled_us"
    is_priced = "outcome IN ('matched', 'abandoned')"
    contracted = (
        outcomes.selectExpr(
            "*", "greatest(request_lsn, completion_lsn) AS decided_lsn", "unix_micros(event_time) AS event_us"
        )
        .join(F.broadcast(accounts), on="account", how="left")
        .selectExpr(
            *outcomes.columns, "decided_lsn", "event_us", f"{_as_of('contract', is_contract_settled)} AS contract"
        )
    )
    is_same_key = "price_plan = contract.plan AND price_model = model AND price_currency = contract.currency"
    return (
        contracted.join(F.broadcast(prices), on=F.expr(f"{is_priced} AND {is_same_key}"), how="left")
        .selectExpr(
            *outcomes.columns,
            "contract",
            *[f"{_as_of(meter, is_price_settled)} AS {meter}_unit" for meter in Meter],
        )
        .selectExpr(
            *[name for name in outcomes.columns if name not in list(Meter)],
            "contract.plan",
            "contract.currency",
            *[column for meter in Meter for column in _metered(meter)],
            "1 AS sign",
            f"'{UsageCause.STREAM}' AS cause",
            "CAST(null AS ARRAY<LONG>) AS corrects_lsns",
        )
        .select(*PRICED)
    )
