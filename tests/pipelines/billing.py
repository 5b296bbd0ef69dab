"""Rows of `usage`, what billing makes of them, and a second opinion on it: exact, one row at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from types import MappingProxyType
from typing import Any

import psycopg
import pyarrow as pa

from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB
from jobs.billing.rules import history_until, holds
from jobs.billing.sums import COLUMNS, sums
from jobs.runtime.effective_rules import EffectiveRules, History, effective_at
from jobs.runtime.job import Counts
from jobs.streams import USAGE
from metering.meters import Meter
from metering.vocabulary import BILLED, Decision, Outcome, UsageCause
from metering.windows import MINUTE, tumbling
from tests.metered import listed
from tests.pipelines.folding import fold_table, rows_of
from tests.specifications.billing import decide, is_metered, is_unmetered

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EXACT = Context(prec=60)
MICROSECOND = timedelta(microseconds=1)
CONFIG = BillingConfig()


@dataclass(frozen=True)
class Price:
    """A price's version and its unit price."""

    version: int
    unit_price: Decimal


CHEAP = Price(7, Decimal("0.000003141593"))


def usage_row(
    lsn: int,
    event_time: datetime = NOON,
    delay: timedelta = timedelta(seconds=1),
    *,
    price: Price | None = CHEAP,
    quantities: Mapping[Meter, int | Decimal | None] | None = None,
    **other: Any,
) -> dict[str, Any]:
    """A matched outcome of one request with `quantities` (null where not named), all at one price."""
    row: dict[str, Any] = {
        "lsn": lsn,
        "account": "acme",
        "request_id": f"request-{lsn}",
        "model": "sonnet",
        "outcome": Outcome.MATCHED,
        "event_time": event_time,
        "received_at": event_time + delay,
        "currency": "EUR",
        "sign": 1,
        "cause": "stream",
    }
    for meter, quantity in (quantities if quantities is not None else {Meter.REQUESTS: 1}).items():
        row[meter] = quantity
        if price is not None:
            row[f"{meter}_price_version"] = price.version
            row[f"{meter}_unit_price"] = price.unit_price
            row[f"{meter}_amount"] = None if quantity is None else EXACT.multiply(price.unit_price, Decimal(quantity))
    return {**row, **other}


@dataclass
class Billed:
    """Windows and stragglers, each by its key."""

    windows: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    stragglers: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)
    corrections: set[tuple[int, str]] = field(default_factory=set, compare=False)
    """Usage lsn and meter of what changed a window that was shown closed."""
    dropped: set[tuple[int, str]] = field(default_factory=set, compare=False)
    """Or rejected, or they wait."""
    billed_at_once: set[tuple[int, str]] = field(default_factory=set, compare=False)
    """Usage lsn and meter of what had a quantity, and was neither a straggler nor decided as one."""


Settled = Mapping[tuple[int, str], Decision]
"""By usage lsn and meter what became of stragglers that waited; of those that still do, nothing."""


def billed(
    rows: Iterable[dict[str, Any]],
    config: BillingConfig,
    closed_until: datetime | None = None,
    settled: Settled = MappingProxyType({}),
) -> Billed:
    """What `rows` (in the order of lsn, where some correct others) bill, by the rules, in exact arithmetic.

    `closed_until`: what ends by then was shown closed before any of them came.
    """
    return billed_by_history(rows, (EffectiveRules(1, config.deciding),), closed_until, settled)


def billed_by_history(
    rows: Iterable[dict[str, Any]],
    history: History,
    closed_until: datetime | None = None,
    settled: Settled = MappingProxyType({}),
) -> Billed:
    """The same by the rules that held, each row by those of its lsn."""
    result = Billed()
    for row in rows:
        if row["cause"] != UsageCause.DECIDED:
            for meter in Meter:
                _bill(result, row, meter, effective_at(history, row["lsn"]), closed_until, settled=settled)
    return result


def _bill(
    result: Billed,
    row: dict[str, Any],
    meter: Meter,
    held: EffectiveRules,
    closed_until: datetime | None,
    *,
    settled: Settled,
) -> None:
    grace_s = held.rules.get("meter_grace_seconds", {}).get(meter, held.rules["grace_seconds"])
    grace, closed_before = timedelta(seconds=grace_s), held.closed_before.of(meter)
    quantity, version = row.get(meter), row.get(f"{meter}_price_version")
    metered, unmetered = is_metered(quantity), is_unmetered(row["outcome"], quantity)
    window = tumbling(row["event_time"])
    is_from_stream = row["cause"] == UsageCause.STREAM
    first_received_at = row.get("first_received_at") or row["received_at"]
    if is_from_stream:
        policy, until = policy_of(row, meter, held), history_until(held.rules)
        if until is not None and window.end <= until and first_received_at < row["received_at"]:
            decision = decide(first_received_at, window, grace, policy, None)
        else:
            decision = decide(row["received_at"], window, grace, policy, closed_before)
        if decision is not None and row["received_at"] != first_received_at < window.end + grace:
            # It came back to a window that had closed, and had come in time at first.
            decision = Decision.CORRECT
        if decision is Decision.HOLD:
            decision = settled.get((row["lsn"], meter.value), decision)
    else:
        of_corrected = [result.stragglers.get((lsn, meter.value)) for lsn in row["corrects_lsns"]]
        inherited = {Decision(one["decision"]) for one in of_corrected if one}
        decision = next((one for one in Decision if one in inherited), None)
        is_whole = row["cause"] == UsageCause.RESTATED and row["sign"] > 0
        meters = Meter if is_whole else (meter,)
        if any((lsn, one.value) in result.billed_at_once for lsn in row["corrects_lsns"] for one in meters):
            decision = None
    if not (metered or unmetered):
        return
    was_closed = closed_until is not None and window.end <= closed_until
    is_billed = decision in (None, *BILLED)
    corrects = metered and is_billed and (decision is not None or (not is_from_stream and was_closed))
    if corrects:
        result.corrections.add((row["lsn"], meter.value))
    signed = row["sign"] * (quantity or 0)
    unit_price = row.get(f"{meter}_unit_price")
    amount = None if version is None else EXACT.multiply(row[f"{meter}_amount"] or Decimal(0), Decimal(row["sign"]))
    if decision is not None and metered:
        result.stragglers[row["lsn"], meter.value] = {
            "request_id": row["request_id"],
            "window_start": window.start,
            "late_seconds": max(Decimal(0), Decimal((row["received_at"] - window.end) // MICROSECOND) / 10**6),
            "decision": decision.value,
            "quantity": signed,
            "unit_price": unit_price,
            "amount": amount,
            "currency": row["currency"],
            "price_version": version,
        }
    if metered and decision is None:
        result.billed_at_once.add((row["lsn"], meter.value))
    if not is_billed:
        result.dropped.add((row["lsn"], meter.value))
        return
    late = is_from_stream and decision is None and first_received_at >= window.end
    key = (window.start, row["account"], row["model"], meter.value, row["currency"], version)
    cell = result.windows.setdefault(
        key,
        {
            "quantity": 0,
            "unit_price": unit_price,
            "amount": None if version is None else Decimal(0),
            "late_quantity": 0,
            "late_rows": 0,
            "unmetered_rows": 0,
            "corrected": False,
        },
    )
    cell["quantity"] += signed
    cell["amount"] = None if amount is None else EXACT.add(cell["amount"], amount)
    cell["late_quantity"] += signed if late else 0
    cell["late_rows"] += late and metered
    cell["unmetered_rows"] += unmetered and is_from_stream
    cell["corrected"] |= corrects


def policy_of(row: dict[str, Any], meter: Meter, held: EffectiveRules) -> Decision:
    """What is decided of a row if it is a straggler: also whether it waits."""
    policy = Decision(held.rules["late_policy"].get(meter, "correct"))
    if policy is not Decision.HOLD:
        return policy
    price = row.get(f"{meter}_unit_price")
    amount = None if price is None else EXACT.multiply(price, Decimal(row.get(meter) or 0))
    age = row["received_at"] - tumbling(row["event_time"]).end
    waits = is_metered(row.get(meter)) and holds(held.rules)[meter].holds(amount, age, row["currency"])
    return Decision.HOLD if waits else Decision.CORRECT


def built(rows: list[dict[str, Any]], config: BillingConfig = CONFIG) -> pa.Table:
    """What billing reduces `rows` to."""
    columns = [name for name in USAGE.names if name in COLUMNS]
    nullable = pa.schema([field.with_nullable(True) for field in USAGE])
    return sums(
        pa.Table.from_pylist(written(rows), schema=nullable).select(columns), EffectiveRules(1, config.deciding)
    )


def written(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as usage has them; every second one is as an earlier release wrote it, if it could."""
    return [
        row if row["cause"] == UsageCause.DECIDED or (number % 2 and _is_whole(row)) else listed(row)
        for number, row in enumerate(rows)
    ]


def _is_whole(row: dict[str, Any]) -> bool:
    return all(isinstance(row.get(meter), int | None) for meter in Meter)


def bill(
    connection: psycopg.Connection[Any],
    rows: list[dict[str, Any]],
    config: BillingConfig = CONFIG,
    frontier: datetime | None = None,
    next_position: int = 1,
) -> Counts:
    """Reduce and fold one batch, with which F comes as far as `frontier`; `next_position` where it has no rows."""
    position = max((row["lsn"] for row in rows), default=next_position - 1) + 1
    staged = built(rows, config)
    return fold_table(connection, JOB, staged, config, frontier=frontier, next_position=position)


def stored(connection: psycopg.Connection[Any]) -> Billed:
    """What the database holds."""
    result = Billed()
    names = ("window_start", "account", "model", "meter", "currency", "price_version")
    for row in rows_of(connection, "SELECT * FROM usage_windows"):
        key = tuple(row.pop(name) for name in names)
        assert row.pop("window_end") - key[0] == MINUTE
        row.pop("updated_at")
        row.pop("version")
        row.pop("next_position")
        assert key not in result.windows
        result.windows[key] = row
    for row in rows_of(connection, "SELECT * FROM stragglers"):
        found = (row.pop("usage_lsn"), row.pop("meter"))
        decided = ("request_id", "window_start", "late_seconds", "decision")
        priced = ("quantity", "unit_price", "amount", "currency", "price_version")
        result.stragglers[found] = {name: row[name] for name in (*decided, *priced)}
    return result
