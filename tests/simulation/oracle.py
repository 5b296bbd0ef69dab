"""What must hold at the end of a history, recomputed at once: row by row, by the rules of `metering`, from what Kafka
holds and from the order that the journal gave to it.

The checks are those of docs/design.md, section 8. I7, I8 and I9 speak of invoices and corrections, which are not built.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import groupby, pairwise
from typing import Any

import psycopg
from deltalake import DeltaTable
from psycopg.rows import dict_row

from jobs.ingestion.config import IngestionConfig
from jobs.runtime.catalog_changes import parse_change
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.postgres.rules_table import stored_history
from jobs.runtime.rules_in_force import History, held_at, read_history, rules_at
from jobs.streams import EVENTS_TOPIC, CatalogTopic, Table
from metering.joining import Decision, Side, step
from metering.joining import Row as TimedRow
from metering.lateness import Arrival, arrival
from metering.meters import REPORTED, Meter
from metering.pricing import Version, account_as_of, price_as_of
from metering.sessions import Session, merge
from metering.windows import tumbling
from metering.words import BILLABLE, Disposition, EventType, Outcome, Reason
from tests.simulation.kafka import Kafka
from tests.simulation.rules import classified, is_session_event
from tests.simulation.world import World

Row = dict[str, Any]
SIDES = {EventType.REQUEST: Side.REQUEST, EventType.COMPLETION: Side.COMPLETION, EventType.USAGE: Side.BOTH}
FOR_EVER_US = 10**16
DEFAULT = IngestionConfig()


@dataclass(frozen=True)
class Found:
    """What the applications have made: rows of the tables in the order of lsn, and of the database."""

    journal: list[Row]
    journal_state: DeltaTable
    usage: list[Row]
    timeouts: History
    graces: History
    gaps: list[tuple[int, timedelta]]
    windows: list[Row]
    stragglers: list[Row]
    sessions: list[Row]


def found_in(world: World) -> Found:
    """All that is there, and what retention took."""
    journal, usage = (DeltaTable(str(world.tables / table)) for table in (Table.JOURNAL, Table.USAGE))
    with psycopg.connect(world.database) as connection:
        cursor = connection.cursor(row_factory=dict_row)
        windows, stragglers, sessions = (
            cursor.execute(f"SELECT * FROM {table}").fetchall() for table in ("usage_windows", "stragglers", "sessions")
        )
        gaps = connection.execute("SELECT first_position, gap FROM session_gaps ORDER BY 1").fetchall()
        graces = stored_history(connection, "billing")
    rows, outcomes = (
        [*world.removed[table].values(), *found.to_pyarrow_table().to_pylist()]
        for table, found in ((Table.JOURNAL, journal), (Table.USAGE, usage))
    )
    for each in (rows, outcomes):
        each.sort(key=lambda row: row["lsn"])
    timeouts = read_history(usage)[0]
    return Found(rows, journal, outcomes, timeouts, graces, gaps, windows, stragglers, sessions)


def differences(world: World) -> Iterator[str]:
    """A sentence for each promise that is broken; none for a history that ended as it must."""
    found = found_in(world)
    yield from _journal(found, world.kafka)
    yield from _received(found)
    yield from _frontiers(found)
    yield from _dispositions(found)
    yield from _outcomes(found)
    yield from _prices(found)
    yield from _windows(found)
    yield from _sessions(found)
    yield from _closed(found, world)


def _journal(found: Found, kafka: Kafka) -> Iterator[str]:
    """I1, I2: each record once, as it is, in rows numbered without a hole; and what holds no record is counted."""
    yield from _differ("I1: lsn", [row["lsn"] for row in found.journal], range(1, len(found.journal) + 1))
    yield from _differ("I1: lsn of usage", [row["lsn"] for row in found.usage], range(1, len(found.usage) + 1))
    for topic in kafka.topics:
        held = kafka.records(topic)
        rows = {(row["partition"], row["offset"]): row for row in found.journal if row["topic"] == topic}
        count = sum(row["topic"] == topic for row in found.journal)
        if count != len(rows) or rows.keys() != held.keys():
            missing, more = sorted(held.keys() - rows.keys()), sorted(rows.keys() - held.keys())
            yield f"I1: {topic} has {len(held)} records, the journal {count} rows; {missing=}, {more=}"
        for place in rows.keys() & held.keys():
            if (rows[place]["value"], rows[place]["key"]) != (held[place].value, held[place].key):
                yield f"I1: {topic} {place} has another value in the journal"
        for partition, log in enumerate(kafka.topics[topic]):
            said = found.journal_state.transaction_version(f"absent:id of {topic}:{partition}") or 0
            if said != sum(record is None for record in log):
                yield f"I2: {topic}[{partition}] has {log.count(None)} holes, the journal counts {said}"


def _differ(what: str, found: Iterable[Any], wanted: Iterable[Any]) -> Iterator[str]:
    if (found := list(found)) != (wanted := list(wanted)):
        first = next((pair for pair in zip(found, wanted, strict=False) if pair[0] != pair[1]), None)
        yield f"{what}: {len(found)} instead of {len(wanted)}; the first that differ: {first}"


def _received(found: Found) -> Iterator[str]:
    """I10: `received_at` is the running maximum of a partition's stamps."""
    latest: dict[tuple[str, int], datetime] = {}
    for row in sorted(found.journal, key=lambda row: (row["topic"], row["partition"], row["offset"])):
        place = row["topic"], row["partition"]
        if place in latest and row["received_at"] < latest[place]:
            yield f"I10: lsn {row['lsn']} was received before the record in front of it"
        latest[place] = row["received_at"]


def _frontiers(found: Found) -> Iterator[str]:
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
        received = [row["received_at"] for row in rows if row["topic"] == EVENTS_TOPIC]
        earliest = min([*received, *([] if earliest is None else [earliest])], default=None)


def _dispositions(found: Found) -> Iterator[str]:
    """I2, I10: each row is judged by itself and by the accepted ones before it."""
    accepted: dict[bytes, list[Row]] = defaultdict(list)
    for row in found.journal:
        if row["topic"] != EVENTS_TOPIC:
            wanted: tuple[Any, ...] = (Disposition.ACCEPTED, None, None)
        else:
            stamp = {"timestamp": row["received_at"], "timestampType": 1}
            said = classified({**{n: row[n] for n in ("topic", "partition", "offset", "key", "value")}, **stamp})
            wanted = _judged(said, row, accepted[said.get("identity", b"")])
            if wanted[0] is Disposition.ACCEPTED:
                accepted[said["identity"]].append({**said, "lsn": row["lsn"], "received_at": row["received_at"]})
        if (row["disposition"], row["reason"], row["first_lsn"]) != wanted:
            yield f"I2: lsn {row['lsn']} is {row['disposition']}, {row['reason']}, {row['first_lsn']}, not {wanted}"


def _judged(said: Row, row: Row, accepted: list[Row]) -> tuple[Any, ...]:
    exact, whole, early = DEFAULT.horizons.exact, DEFAULT.horizons.whole, DEFAULT.horizons.early
    if said["reason"] is not None:
        return Disposition.REJECTED, said["reason"], None
    if said["occurred_at"] < row["received_at"] - timedelta(seconds=DEFAULT.accept_past_seconds):
        return Disposition.REJECTED, Reason.TOO_OLD, None
    if said["occurred_at"] > row["received_at"] + early:
        return Disposition.REJECTED, Reason.FUTURE, None
    for first in accepted:
        is_near = first["received_at"] >= row["received_at"] - exact
        is_older = said["occurred_at"] <= row["received_at"] - exact + early
        since = max(row["received_at"] - whole, said["occurred_at"] - early)
        same_day = first["occurred_at"].date() == said["occurred_at"].date()
        if is_near or (is_older and first["received_at"] >= since and same_day):
            same = first["content_digest"] == said["content_digest"]
            return Disposition.DUPLICATE if same else Disposition.CONFLICT, None, first["lsn"]
    return Disposition.ACCEPTED, None, None


def _outcomes(found: Found) -> Iterator[str]:
    """I4: every accepted request and completion is in exactly one outcome, the one that the rule says."""
    keys = defaultdict(list)
    for row in found.journal:
        if row["disposition"] == Disposition.ACCEPTED and row["type"] in BILLABLE:
            rules = rules_at(found.timeouts, row["lsn"])
            default_s, models_s = rules["completion_timeout_seconds"], rules["completion_timeouts"]
            longest_s = max(default_s, *models_s.values(), 0)
            side = SIDES[EventType(row["type"])]
            seconds = longest_s if side is Side.COMPLETION else models_s.get(row["model"], default_s)
            timed = TimedRow(row["lsn"], side, microseconds_of(row["received_at"]), seconds * 1_000_000)
            keys[row["account"], row["request_id"]].append(timed)
    wanted: Counter[Decision] = Counter()
    for rows in keys.values():
        wanted.update(step((), rows, FOR_EVER_US)[1])
    told = Counter(Decision(Outcome(r["outcome"]), r["request_lsn"], r["completion_lsn"]) for r in found.usage)
    if told != wanted:
        yield f"I4: outcomes {list((told - wanted).elements())} instead of {list((wanted - told).elements())}"


def _prices(found: Found) -> Iterator[str]:
    """I10: what an outcome says and costs, from its rows and from the versions before it."""
    by_lsn = {row["lsn"]: row for row in found.journal}
    accounts, prices = _versions(found)
    for usage in found.usage:
        parts = [by_lsn[lsn] for lsn in {usage["request_lsn"], usage["completion_lsn"]} if lsn is not None]
        decided = max(part["lsn"] for part in parts)
        request, completion = by_lsn.get(usage["request_lsn"]), by_lsn.get(usage["completion_lsn"])
        said = completion or request
        assert said is not None
        contract = account_as_of(accounts[usage["account"]], said["event_time"], decided)
        plan, currency = (None, None) if contract is None or contract.value is None else contract.value
        wanted: Row = {"event_time": said["event_time"], "plan": plan, "currency": currency, "sign": 1}
        wanted |= {"model": None if request is None else request["model"], "cause": "stream"}
        wanted |= {"day": said["event_time"].date()}
        is_billed = usage["outcome"] in (Outcome.MATCHED, Outcome.ABANDONED)
        for meter in Meter:
            reported = None if completion is None else completion[REPORTED.get(meter, "input_tokens")]
            quantity = int(is_billed) if meter not in REPORTED else reported
            quantity = 0 if usage["outcome"] == Outcome.SUPERSEDED else quantity
            unit = None
            if is_billed and quantity is not None:
                unit = price_as_of(prices[plan, wanted["model"], meter.value, currency], said["event_time"], decided)
            wanted[meter] = quantity
            wanted[f"{meter}_price_version"] = None if unit is None else unit.lsn
            wanted[f"{meter}_unit_price"] = None if unit is None else unit.value
            amount = None if unit is None or unit.value is None or quantity is None else unit.value * quantity
            wanted[f"{meter}_amount"] = amount
        wrong = {name: (usage[name], value) for name, value in wanted.items() if usage[name] != value}
        if wrong:
            yield f"I10: usage {usage['lsn']} of {usage['outcome']} says (instead of): {wrong}"


Versions = defaultdict[Any, list[Version[Any]]]


def _versions(found: Found) -> tuple[Versions, Versions]:
    accounts: Versions = defaultdict(list)
    prices: Versions = defaultdict(list)
    last: dict[Any, Any] = {}
    for row in found.journal:
        if row["topic"] not in (CatalogTopic.ACCOUNTS, CatalogTopic.PRICES):
            continue
        change = parse_change(row["topic"], row["value"], row["lsn"])
        assert change is not None
        is_account = row["topic"] == CatalogTopic.ACCOUNTS
        names = ("plan", "currency") if is_account else ("unit_price",)
        value = None if change["deleted"] else tuple(change[name] for name in names)
        price_key = ("plan", "model", "meter", "currency")
        key: Any = change["account"] if is_account else tuple(change[name] for name in price_key)
        # What says the same as the one before it is no new version.
        said = (value, change["effective_from"] if is_account else None, change.get("timezone"), change.get("name"))
        place = key if is_account else (*key, change["effective_from"])
        if last.get(place) == said:
            continue
        last[place] = said
        held = value if value is None or is_account else value[0]
        (accounts if is_account else prices)[key].append(Version(row["lsn"], change["effective_from"], held))
    return accounts, prices


def _windows(found: Found) -> Iterator[str]:
    """I6, I10: every signed quantity is in the window or the straggler that the rule says, to the last digit."""
    windows: dict[Any, Row] = {}
    stragglers: dict[Any, Row] = {}
    for usage in found.usage:
        held = held_at(found.graces, usage["lsn"])
        window = tumbling(usage["event_time"])
        grace = timedelta(seconds=held.rules["grace_seconds"])
        came = arrival(usage["received_at"], window, grace, held.closed_before)
        for meter in Meter:
            quantity = usage[meter]
            is_unmetered = usage["outcome"] == Outcome.MATCHED and quantity is None
            if not quantity and not is_unmetered:
                continue
            decision = held.rules["late_policy"][meter] if came is Arrival.STRAGGLER else None
            version, unit = usage[f"{meter}_price_version"], usage[f"{meter}_unit_price"]
            if decision is not None and quantity:
                stragglers[usage["lsn"], meter.value] = {
                    "decision": decision,
                    "quantity": Decimal(quantity),
                    "unit_price": unit,
                    "window_start": window.start,
                    "price_version": version,
                }
            if decision == "drop":
                continue
            key = (window.start, usage["account"], usage["model"], meter.value, usage["currency"], version)
            row = windows.setdefault(key, {**_EMPTY, "unit_price": unit})
            row["quantity"] += Decimal(quantity or 0)
            row["late_rows"] += int(bool(quantity) and came is Arrival.LATE)
            row["late_quantity"] += Decimal(quantity or 0) if came is Arrival.LATE else 0
            row["unmetered_rows"] += int(is_unmetered)
            row["corrected"] |= bool(quantity) and came is Arrival.STRAGGLER
    names = ("window_start", "account", "model", "meter", "currency", "price_version")
    told = {tuple(row[name] for name in names): {n: row[n] for n in (*_EMPTY, "unit_price")} for row in found.windows}
    yield from _of_keys("I6: window", told, windows)
    if len(told) != len(found.windows):
        yield "I6: two windows have one key"
    fields = ("decision", "quantity", "unit_price", "window_start", "price_version")
    yield from _of_keys(
        "I6: straggler", {(r["usage_lsn"], r["meter"]): {n: r[n] for n in fields} for r in found.stragglers}, stragglers
    )


_EMPTY: Row = {
    "quantity": Decimal(0),
    "late_rows": 0,
    "late_quantity": Decimal(0),
    "unmetered_rows": 0,
    "corrected": False,
}


def _of_keys(what: str, found: dict[Any, Row], wanted: dict[Any, Row]) -> Iterator[str]:
    for key in found.keys() | wanted.keys():
        if found.get(key) != wanted.get(key):
            yield f"{what} {key}: {found.get(key)} instead of {wanted.get(key)}"


def _sessions(found: Found) -> Iterator[str]:
    """I5: a user's sessions are disjoint, more than a gap apart, and count each request once."""
    users: dict[Any, list[Session]] = defaultdict(list)
    bounds = [*found.gaps, (len(found.journal) + 1, timedelta(0))]
    for (first, gap), (end, _) in pairwise(bounds):
        for row in found.journal:
            if first <= row["lsn"] < end and is_session_event(row):
                users[row["account"], row["user_id"]].append(Session(row["event_time"], row["event_time"], 1))
        users = defaultdict(list, {user: merge(sessions, gap) for user, sessions in users.items()})
    wanted = {(a, u, s.start): {"end": s.end, "events": s.events} for (a, u), all_ in users.items() for s in all_}
    live = [row for row in found.sessions if row["retracted_at"] is None]
    told = {(r["account"], r["user_id"], r["session_start"]): _session(r) for r in live}
    yield from _of_keys("I5: session", told, wanted)


def _session(row: Row) -> Row:
    return {"end": row["session_end"], "events": row["events"]}


def _closed(found: Found, world: World) -> Iterator[str]:
    """What was shown closed stays: a window but for stragglers, a session but for its retraction."""
    stragglers = {row["usage_lsn"] for row in found.stragglers}
    for position, closed_until in world.closed_usage:
        for row in found.usage[position - 1 :]:
            is_in_closed = tumbling(row["event_time"]).end <= closed_until
            if is_in_closed and any(row[meter] for meter in Meter) and row["lsn"] not in stragglers:
                yield f"I6: usage {row['lsn']} is in a window that was shown closed, and no straggler"
    names = ("account", "user_id", "session_start", "session_end", "events")
    stored = {row["session_id"]: tuple(row[name] for name in names) for row in found.sessions}
    for session_id, shown in world.closed_sessions.items():
        if stored.get(session_id) != shown:
            yield f"I5: session {session_id} was shown closed as {shown}, and is {stored.get(session_id)}"
