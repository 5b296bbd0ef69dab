"""The journal as it must be: I1, I2 and F, from what Kafka holds and the order that the journal gave to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from jobs.ingestion.config import IngestionConfig
from jobs.runtime.effective_rules import read_history, rules_at
from jobs.streams import CatalogTopic
from metering.contracts.reversals import METER, QUANTITY, REASON
from metering.instants import EPOCH
from metering.vocabulary import Disposition, Reason
from tests.simulation.declared import BACKFILL, HISTORY
from tests.simulation.made import Found, Row
from tests.simulation.rules import FIELDS, classified, types_of
from tests.simulation.world import World
from tests.specifications.clock import Acceptance, AcceptWindow

CATALOG = frozenset(map(str, CatalogTopic))
DEFAULT = IngestionConfig()
AS_RECEIVED = ("topic", "partition", "offset", "key", "value", "replay_mark", "reception_mark")
READ = ("source", "id", "type", "account", "occurred_at", *FIELDS, "gpu_seconds", REASON, METER, QUANTITY)
"""What a journal row says of its event, and all money is made of."""


def journal(found: Found, world: World) -> Iterator[str]:
    """I1, I2: each record once, as it is, in rows numbered without a hole; and what holds no record is counted.

    Of a topic that ended it is what was there by then, at least; and no record of it is passed.
    """
    kafka = world.kafka
    ingestion = world.configured("ingestion")
    assert isinstance(ingestion, IngestionConfig)
    yield from _differ("I1: lsn", [row["lsn"] for row in found.journal], range(1, len(found.journal) + 1))
    yield from _differ("I1: lsn of usage", [row["lsn"] for row in found.usage], range(1, len(found.usage) + 1))
    for topic in kafka.topics:
        ends = [len(log) for log in kafka.topics[topic]]
        if topic not in {*ingestion.topics, *CatalogTopic}:
            ends = [world.position(topic, partition) for partition in range(len(ends))]
            missing_of = {p: at for p, at in world.ended.get(topic, {}).items() if ends[p] < at}
            if missing_of:
                yield f"I1: {topic} was read to {ends} when it ended, but before to {missing_of}"
        held = {place: record for place, record in kafka.records(topic).items() if place[1] < ends[place[0]]}
        rows = {(row["partition"], row["offset"]): row for row in found.journal if row["topic"] == topic}
        count = sum(row["topic"] == topic for row in found.journal)
        if count != len(rows) or rows.keys() != held.keys():
            missing, more = sorted(held.keys() - rows.keys()), sorted(rows.keys() - held.keys())
            yield f"I1: {topic} has {len(held)} records, the journal {count} rows; {missing=}, {more=}"
        for place in rows.keys() & held.keys():
            marks = [(mark or b"").decode() or None for mark in (held[place].mark, held[place].first)]
            was = [held[place].value, held[place].key, *marks]
            if [rows[place][name] for name in ("value", "key", "replay_mark", "reception_mark")] != was:
                yield f"I1: {topic} {place} has another value in the journal"
        for partition, log in enumerate(kafka.topics[topic]):
            said = found.journal_state.transaction_version(f"absent:id of {topic}:{partition}") or 0
            if said != (holes := log[: ends[partition]].count(None)):
                yield f"I2: {topic}[{partition}] has {holes} holes, the journal counts {said}"


def _differ(what: str, found: Iterable[Any], wanted: Iterable[Any]) -> Iterator[str]:
    if (found := list(found)) != (wanted := list(wanted)):
        first = next((pair for pair in zip(found, wanted, strict=False) if pair[0] != pair[1]), None)
        yield f"{what}: {len(found)} instead of {len(wanted)}; the first that differ: {first}"


def received(found: Found, world: World) -> Iterator[str]:
    """I10: `received_at` is the running maximum of a partition's stamps.

    Only where a broker's clock was ahead may the first record of a partition have been received later: at F. A topic
    that is taken up while others are read was not received before the F of then, nor one that ended and is read again.
    """
    latest: dict[tuple[str, int], datetime] = {}
    floors = _floors(found)
    for row in sorted(found.journal, key=lambda row: (row["topic"], row["partition"], row["offset"])):
        place, received_at = (row["topic"], row["partition"]), row["received_at"]
        record = world.kafka.topics[row["topic"]][row["partition"]][row["offset"]]
        assert record is not None
        stamped_at = EPOCH + timedelta(milliseconds=record.stamp_ms)
        wanted = max(stamped_at, latest.get(place, EPOCH))
        if row["topic"] in world.taken_up and latest.get(place, EPOCH) < floors[row["lsn"]]:
            wanted = max(stamped_at, floors[row["lsn"]])
        is_raised = received_at > wanted and place not in latest and world.has_wrong_stamps
        if received_at != wanted and not is_raised:
            yield f"I10: lsn {row['lsn']} was received at {received_at}, not at {wanted}"
        latest[place] = received_at


def _floors(found: Found) -> dict[int, datetime]:
    """By lsn the F of the commits before."""
    floors: dict[int, datetime] = {}
    frontier = EPOCH
    for _, commit in groupby(found.journal, key=lambda row: row["logged_at"]):
        rows = list(commit)
        floors |= {row["lsn"]: frontier for row in rows}
        frontier = rows[-1]["frontier"] or frontier
    return floors


def frontiers(found: Found) -> Iterator[str]:
    """Nothing that comes after a commit was received before its F; and F never goes back."""
    earliest: datetime | None = None
    later: datetime | None = None
    for _, commit in groupby(reversed(found.journal), key=lambda row: row["logged_at"]):
        rows = list(commit)
        frontier, last = rows[0]["frontier"], rows[0]["lsn"]
        if frontier is not None and earliest is not None and earliest < frontier:
            yield f"I10: F is {frontier} after lsn {last}, but a later row was received at {earliest}"
        if frontier is not None and later is not None and frontier > later:
            yield f"I10: F goes back after lsn {last}: {frontier} to {later}"
        later = later if frontier is None else frontier
        received = [row["received_at"] for row in rows if row["topic"] not in CATALOG]
        earliest = min([*received, *([] if earliest is None else [earliest])], default=None)


def dispositions(found: Found) -> Iterator[str]:
    """I2, I10: each row follows from itself, the dead letter that it replays, and the accepted rows before it."""
    accepted: dict[bytes, list[Row]] = defaultdict(list)
    came_back: dict[int, int] = {}
    history, _ = read_history(found.journal_state)
    by_mark = {f"{row['topic']}/{row['partition']}/{row['offset']}": row for row in found.journal}
    for row in found.journal:
        first = _replayed(row, by_mark, found.removed)
        since = _first_received_at(row, first)
        told = (first and first["lsn"], since)
        if (row["replays_lsn"], row["first_received_at"]) != told:
            yield f"I2: lsn {row['lsn']} with the mark {row['replay_mark']} replays {row['replays_lsn']}, not {told}"
        if row["topic"] in CATALOG:
            wanted: tuple[Any, ...] = (Disposition.ACCEPTED, None, None)
        else:
            stamp = {"timestamp": row["received_at"], "timestampType": 1}
            rules = rules_at(history, row["lsn"])
            record = {**{name: row[name] for name in AS_RECEIVED}, **stamp}
            said = classified(record, rules["contracts"], types_of(rules.get("events", ())))
            # A type without a contract repeats nothing, and nothing repeats it.
            has_contract = said.get("family") is not None
            before = accepted[said["identity"]] if has_contract else []
            if since and row["disposition"] == Disposition.ACCEPTED:
                # What retention took before it was asked for, nothing can repeat.
                before = [one for one in before if one["lsn"] not in found.removed]
            wanted = _validated(said, row, since, before)
            if first and wanted[0] is not Disposition.REJECTED and first["lsn"] in came_back:
                wanted = (Disposition.DUPLICATE, None, came_back[first["lsn"]])
            if first and wanted[0] is Disposition.ACCEPTED:
                came_back[first["lsn"]] = row["lsn"]
            if wanted[0] is Disposition.ACCEPTED and has_contract:
                accepted[said["identity"]].append({**said, "lsn": row["lsn"], "received_at": row["received_at"]})
        if (row["disposition"], row["reason"], row["first_lsn"]) != wanted:
            yield f"I2: lsn {row['lsn']} is {row['disposition']}, {row['reason']}, {row['first_lsn']}, not {wanted}"
        if row["topic"] not in CATALOG and row["disposition"] == Disposition.ACCEPTED:
            wrong = {name: (row.get(name), said[name]) for name in READ if row.get(name) != said[name]}
            wrong |= {} if row["event_time"] == said["occurred_at"] else {"event_time": row["event_time"]}
            if wrong:
                yield f"I2: lsn {row['lsn']} says (instead of its record): {wrong}"


def _replayed(row: Row, by_mark: dict[str, Row], removed: Container[int]) -> Row | None:
    """The dead letter that a row replays; of one that is gone by now, what the row itself says of when it was sent."""
    first = by_mark.get(row["replay_mark"] or "")
    if first is None or first["topic"] in CATALOG or first["lsn"] >= row["lsn"]:
        return None
    counts = first["disposition"] == Disposition.REJECTED and first["replay_mark"] is None
    is_gone = first["lsn"] in removed and row["replays_lsn"] is None
    return first if counts and not is_gone else None


def _first_received_at(row: Row, replayed: Row | None) -> datetime | None:
    """When a row of the past was received first: as its mark says, if that is believed, or when its dead letter was."""
    if row["source"] == HISTORY and row["reception_mark"] is not None and _is_believed(row):
        received_at: datetime = row["received_at"]
        return min(datetime.fromisoformat(row["reception_mark"]), received_at)
    if replayed is None:
        return None
    again: datetime = replayed["first_received_at"] or replayed["received_at"]
    return again


def _is_believed(row: Row) -> bool:
    try:
        marked_at = datetime.fromisoformat(row["reception_mark"])
    except ValueError:
        return False
    window = AcceptWindow(timedelta(seconds=BACKFILL["accept_past_seconds"]), DEFAULT.horizons.early)
    return window.acceptance(marked_at, row["received_at"]) is Acceptance.ACCEPTED


def _validated(said: Row, row: Row, since: datetime | None, accepted: list[Row]) -> tuple[Any, ...]:
    exact, whole, early = DEFAULT.horizons.exact, DEFAULT.horizons.whole, DEFAULT.horizons.early
    received_at = since or row["received_at"]
    if said["reason"] is not None:
        return Disposition.REJECTED, said["reason"], None
    if said["source"] == HISTORY and row["reception_mark"] is not None and not _is_believed(row):
        return Disposition.REJECTED, Reason.INVALID_RECEPTION, None
    if said["occurred_at"] < received_at - timedelta(seconds=DEFAULT.accept_past_seconds):
        return Disposition.REJECTED, Reason.TOO_OLD, None
    if said["occurred_at"] > received_at + early:
        return Disposition.REJECTED, Reason.FUTURE, None
    for first in accepted:
        is_near = first["received_at"] >= received_at - exact
        is_older = said["occurred_at"] <= received_at - exact + early or since is not None
        far_since = max(received_at - whole, said["occurred_at"] - early)
        same_day = first["occurred_at"].date() == said["occurred_at"].date()
        if is_near or (is_older and first["received_at"] >= far_since and same_day):
            same = first["content_digest"] == said["content_digest"]
            return Disposition.DUPLICATE if same else Disposition.CONFLICT, None, first["lsn"]
    return Disposition.ACCEPTED, None, None
