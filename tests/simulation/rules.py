"""What Spark makes of a batch in each application, by the rules of `metering` instead: row by row, and slow."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.formats import DOCUMENT
from jobs.ingestion.handover import FILES, Place, left_in
from jobs.journal.families import EARLIER
from jobs.runtime.delta.new_files import Exchanged
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.kafka import headers
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.pipeline import STAGED as SESSIONS
from jobs.streams import INSTANT, JOURNAL, QUANTITY
from metering.contracts.reversals import METER, REASON
from metering.contracts.reversals import QUANTITY as TAKEN_BACK
from metering.meters import REPORTED_COLUMNS
from metering.sessions import Session, merge
from metering.vocabulary import REQUESTS, Disposition, Family, Reason
from tests.simulation.declared import OTHER_TYPE, REVERSAL_TYPE

Row = dict[str, Any]
ADDED = {
    "stamped_at": INSTANT,
    "is_broker_stamp": pa.bool_(),
    "occurred_us": pa.int64(),
    "device_sent_us": pa.int64(),
    DOCUMENT: pa.binary(),
    headers.COLUMN: pa.string(),
}
NOT_VALIDATED = {"lsn", "log_date", "logged_at", "received_at", "frontier", "rules", "disposition", "first_lsn"}
NOT_VALIDATED |= {"replays_lsn"}
NOT_VALIDATED |= {"event_time", "clock_offset_ms"}
CLASSIFIED = pa.schema(
    [
        *(field for field in JOURNAL if field.name not in NOT_VALIDATED),
        pa.field("gpu_seconds", QUANTITY),
        pa.field(REASON, pa.string()),
        pa.field(METER, pa.string()),
        pa.field(TAKEN_BACK, QUANTITY),
        *(pa.field(n, t) for n, t in ADDED.items()),
    ]
)
FIELDS = (
    *("request_id", "user_id", "model", "status", "usage_source", "region", "cached"),
    *(*REPORTED_COLUMNS, "reasoning_tokens"),
)


def classified(
    record: Row, contracts: Container[str], types: Mapping[str, Container[str]] = MappingProxyType({})
) -> Row:
    """A Kafka record → the columns of `EventValidator.schema` that a simulated event fills; `contracts`: the types.

    `types`: those that topics take, of the topics that do not take all.
    """
    common = {name: record[name] for name in ("topic", "partition", "offset", "key", "value")}
    stamp = {"stamped_at": record["timestamp"], "is_broker_stamp": record["timestampType"] == 1}
    marks = {name: record[name] for name in ("replay_mark", "reception_mark")}
    common |= {name: mark.decode() if isinstance(mark, bytes) else mark for name, mark in marks.items()}
    try:
        event = json.loads(record["value"])
    except ValueError:
        return {**common, **stamp, "reason": Reason.MALFORMED.value}
    occurred_at, data = datetime.fromisoformat(event["time"]), event["data"]
    digest = hashlib.sha256(json.dumps([event["type"], event.get("subject"), event["time"], data]).encode()).digest()
    family = family_of(event["type"], contracts)
    is_elsewhere = family != Family.HEARTBEAT and event["type"] not in types.get(record["topic"], (event["type"],))
    return {
        **common,
        **stamp,
        "reason": Reason.WRONG_TOPIC.value if is_elsewhere else None,
        "identity": identity(event),
        "content_digest": int.from_bytes(digest[:8]) >> 1,
        **{name: event.get(name) for name in ("source", "id", "type", "sequence")},
        "family": family,
        "account": event.get("subject"),
        "occurred_at": occurred_at,
        "occurred_us": microseconds_of(occurred_at),
        **{name: data.get(name) for name in FIELDS},
        "gpu_seconds": Decimal(str(data["gpu_seconds"])) if "gpu_seconds" in data else None,
        REASON: data.get("reason"),
        METER: data.get("meter"),
        TAKEN_BACK: Decimal(str(data["quantity"])) if "quantity" in data else None,
    }


def family_of(kind: str, contracts: Container[str]) -> str | None:
    """What an event of this type is; None: it has no contract."""
    if kind == REVERSAL_TYPE:
        return Family.REVERSAL.value
    return Family.BOTH.value if kind == OTHER_TYPE and kind in contracts else EARLIER.get(kind)


def identity(event: Mapping[str, Any]) -> bytes:
    """16 bytes that no other source and id have."""
    return hashlib.sha256(json.dumps([event["source"], event["id"]]).encode()).digest()[:16]


def build(records: Any, config: IngestionConfig, place: Place | None) -> Any:
    """Stands in for ingestion's `build`: tasks leave files where their driver has a limit of rows."""
    validated = records.then(validator_of(config))
    return validated.then(lambda rows: left_by_two(place, rows)) if isinstance(place, Exchanged) else validated


def left_by_two(place: Exchanged, rows: pa.Table) -> pa.Table:
    """As two tasks leave them, each with half of the partitions."""
    ordered = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
    is_second = pa.array([partition % 2 == 1 for partition in ordered["partition"].to_pylist()], pa.bool_())
    parts = [part for part in (ordered.filter(pc.invert(is_second)), ordered.filter(is_second)) if len(part)]
    return pa.Table.from_batches([file for part in parts for file in left_in(place, [part], CLASSIFIED)], FILES)


def validator_of(config: IngestionConfig) -> Callable[[pa.Table], pa.Table]:
    """Stands in for ingestion's validator."""

    def validated(records: pa.Table) -> pa.Table:
        types = types_of(config.model_dump(mode="json").get("events", ()))
        said = [classified(record, config.contracts_in_force(), types) for record in records.to_pylist()]
        return pa.Table.from_pylist(said, CLASSIFIED)

    return validated


def types_of(events: Iterable[Mapping[str, Any]]) -> dict[str, Container[str]]:
    """The types that topics take, of those that do not take all; `events`: as rules have them."""
    return {topic["topic"]: topic["types"] for topic in events if topic["types"]}


def keep(journal: Any, _config: Any) -> Any:
    """Stands in for joins' `build`."""
    return journal


def mini_sessions(journal: Any, config: SessionizationConfig) -> Any:
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
