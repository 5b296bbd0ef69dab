"""What Spark makes of a batch in each application, by the rules of `metering` instead: row by row, and slow."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs.billing.config import BillingConfig
from jobs.billing.staged import STAGED as SUMS
from jobs.ingestion.config import IngestionConfig
from jobs.joins.pricing import PRICED
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.families import EARLIER
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.pipeline import STAGED as SESSIONS
from jobs.streams import INSTANT, JOURNAL, USAGE
from metering.lateness import Arrival, arrival
from metering.meters import REPORTED_COLUMNS, Meter
from metering.sessions import Session, merge
from metering.windows import tumbling
from metering.words import REQUESTS, Disposition, Outcome, Reason, UsageCause
from tests.simulation.frames import Frame

Row = dict[str, Any]
ADDED = {
    "stamped_at": INSTANT,
    "is_broker_stamp": pa.bool_(),
    "occurred_us": pa.int64(),
    "device_sent_us": pa.int64(),
}
NOT_JUDGED = {"lsn", "log_date", "logged_at", "received_at", "frontier", "rules", "disposition", "first_lsn"}
NOT_JUDGED |= {"event_time", "clock_offset_ms"}
CLASSIFIED = pa.schema(
    [*(field for field in JOURNAL if field.name not in NOT_JUDGED), *(pa.field(n, t) for n, t in ADDED.items())]
)
FIELDS = ("request_id", "user_id", "model", "status", *REPORTED_COLUMNS)


def classified(record: Row) -> Row:
    """A Kafka record → the columns of `Judge.schema` that a simulated event can fill."""
    common = {name: record[name] for name in ("topic", "partition", "offset", "key", "value")}
    stamp = {"stamped_at": record["timestamp"], "is_broker_stamp": record["timestampType"] == 1}
    try:
        event = json.loads(record["value"])
    except ValueError:
        return {**common, **stamp, "reason": Reason.MALFORMED.value}
    occurred_at, data = datetime.fromisoformat(event["time"]), event["data"]
    digest = hashlib.sha256(json.dumps([event["type"], event.get("subject"), event["time"], data]).encode()).digest()
    return {
        **common,
        **stamp,
        "reason": None,
        "identity": identity(event),
        "content_digest": int.from_bytes(digest[:8]) >> 1,
        **{name: event.get(name) for name in ("source", "id", "type", "sequence")},
        "family": EARLIER.get(event["type"]),
        "account": event.get("subject"),
        "occurred_at": occurred_at,
        "occurred_us": microseconds_of(occurred_at),
        **{name: data.get(name) for name in FIELDS},
    }


def identity(event: Mapping[str, Any]) -> bytes:
    """16 bytes that no other source and id have."""
    return hashlib.sha256(json.dumps([event["source"], event["id"]]).encode()).digest()[:16]


def judge(records: Any, _config: IngestionConfig, _folder: Path | None) -> Any:
    """Stands in for ingestion's `build`."""
    return records.then(lambda rows: pa.Table.from_pylist([classified(r) for r in rows.to_pylist()], CLASSIFIED))


def keep(journal: Any, _config: Any) -> Any:
    """Stands in for joins' `build`."""
    return journal


def mini_sessions(journal: Any, config: SessionizationConfig, _closed_before: datetime | None = None) -> Any:
    """Stands in for sessionization's `build`."""

    def reduced(rows: pa.Table) -> pa.Table:
        users = defaultdict(list)
        for row in rows.to_pylist():
            if is_session_event(row):
                users[row["account"], row["user_id"]].append(Session(row["event_time"], row["event_time"], 1))
        found = [
            {"account": account, "user_id": user, "session_start": s.start, "session_end": s.end, "events": s.events}
            for (account, user), events in users.items()
            for s in merge(events, config.session_gap)
        ]
        return pa.Table.from_pylist(found, SESSIONS)

    return journal.then(reduced)


def is_session_event(row: Row) -> bool:
    """Whether a row of the journal is an event of a session."""
    return row["disposition"] == Disposition.ACCEPTED and row["family"] in REQUESTS and row["user_id"] is not None


def sums(usage: Any, config: BillingConfig, closed_before: datetime | None = None) -> Any:
    """Stands in for billing's `build`: a group for each usage row, which the fold adds up."""

    def reduced(rows: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([_sum(row, config.grace, closed_before) for row in rows.to_pylist()], SUMS)

    return usage.then(reduced)


def _sum(row: Row, grace: timedelta, closed_before: datetime | None) -> Row:
    window = tumbling(row["event_time"])
    came = arrival(row["received_at"], window, grace, closed_before)
    is_straggler = came is Arrival.STRAGGLER
    made: Row = {name: row[name] for name in ("account", "model", "currency", "cause", "sign")}
    made |= {name: row[name] for name in ("event_time", "received_at")}
    made |= {
        "window_start": window.start,
        "matched": row["outcome"] == Outcome.MATCHED,
        "late": came is Arrival.LATE,
        "straggler_lsn": row["lsn"] if is_straggler else None,
        "request_id": row["request_id"] if is_straggler else None,
        "usage_rows": 1,
    }
    for meter in Meter:
        quantity, unit = row[meter], row[f"{meter}_unit_price"]
        amount = None if quantity is None or unit is None else quantity * unit
        made |= {
            f"{meter}_price_version": row[f"{meter}_price_version"],
            f"{meter}_unit_price": unit,
            f"{meter}_lowest_unit_price": unit,
            f"{meter}_quantity": Decimal(quantity or 0),
            f"{meter}_reported_rows": int(quantity is not None),
            f"{meter}_metered_rows": int(bool(quantity)),
            f"{meter}_unsound_rows": int(row[f"{meter}_amount"] != amount),
        }
    return made


def price(outcomes: Frame, accounts: Frame, prices: Frame) -> Frame:
    """Stands in for `pricing.price`, with its frames of the catalog."""

    def priced(rows: pa.Table) -> pa.Table:
        contracts = {row["account"]: row["contract_versions"] or [] for row in accounts.toArrow().to_pylist()}
        units = {
            (row["price_plan"], row["price_model"], row["price_currency"]): row for row in prices.toArrow().to_pylist()
        }
        made = [_priced(row, contracts, units) for row in rows.to_pylist()]
        return pa.Table.from_pylist(made, pa.schema([USAGE.field(name) for name in PRICED]))

    return outcomes.then(priced)


def _priced(row: Row, contracts: Mapping[str, list[Row]], units: Mapping[tuple[Any, ...], Row]) -> Row:
    decided = max(row["request_lsn"] or 0, row["completion_lsn"] or 0)
    event_us = microseconds_of(row["event_time"])
    contract = _in_force(contracts.get(row["account"], []), decided, event_us) or {}
    made = {**row, "plan": contract.get("plan"), "currency": contract.get("currency")}
    is_priced = row["outcome"] in (Outcome.MATCHED, Outcome.ABANDONED)
    versions = units.get((made["plan"], row["model"], made["currency"]), {}) if is_priced else {}
    for meter in Meter:
        found = _in_force(versions.get(f"{meter}_versions") or [], decided, event_us) or {}
        unit = found.get("unit_price") if row[meter] is not None else None
        made[f"{meter}_price_version"] = found.get("lsn") if row[meter] is not None else None
        made[f"{meter}_unit_price"] = unit
        made[f"{meter}_amount"] = None if unit is None else row[meter] * unit
    return {**made, "sign": 1, "cause": UsageCause.STREAM.value, "corrects_lsns": None}


def _in_force(versions: list[Row], decided: int, event_us: int) -> Row | None:
    for version in versions:
        ends = version["superseded_lsn"]
        if version["lsn"] < decided and (ends is None or ends >= decided) and version["effective_us"] <= event_us:
            return version
    return None
