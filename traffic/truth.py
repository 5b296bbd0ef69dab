"""What must come of a run of traffic, computed from the script alone, with exact decimals: live, and after an audit.

The truth is a JSON object (instants RFC 3339 in UTC, quantities and amounts as strings):

* `records`: per record `kind, disposition, reason, source, id, digest` (SHA-256 of the bytes);
* `outcomes`: per outcome `account, request_id` (`quantity` of an event that names none), `outcome, model`, the `day` in
  the account's zone, and by meter the `quantities`, null where one that is expected was not reported; where reversals
  take something back, or another outcome of its content counts, what is `left` of them after an audit, null where
  nothing is;
* `totals`: per `account, model, meter, currency, window_start` and price (`price_from`, since when it holds, and
  `unit_price`; null: unpriced; 0 since no instant: another meter bills it) the `quantity`, the `amount`, and whether a
  straggler has `corrected` it; without what a dropped straggler would have added;
* `stragglers`: `account, model, request_id, meter, window_start, decision, quantity, currency, amount`; those of
  quantity 0 left out;
* `sessions`: per `account, user_id` the sessions in their order: the number of `events`, and `start` and `end`, null
  where an event may lie up to the slack later; null instead where a gap is too near to tell;
* `periods`: of meters that bill a day or month by its members, per `account, model, meter, currency, first_day` and
  price (`price_from` and `unit_price`, as of the period's start) the `quantity`, the `amount`, and whether what came
  after its end has `corrected` it, null where that depends on what came first;
* `audited`: `totals`, `stragglers` and `periods` after an audit, which takes back what was reversed, counts each
  content once and prices by what it knows; `corrected` is null where it depends on when the audit ran;
* `late`: outcomes that are certainly late;
* `incidents`: where some were planted, what analytics and limits have to find (`traffic.observed`);
* `sources`: per `source, source_epoch` of an accepted event the `last_event_time` (null where clocks are corrected) and
  `arrived`: the sequence numbers, as pairs of first and last.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

from traffic.bills import (
    Bill,
    Credits,
    Key,
    Line,
    audited_bill,
    known_catalog,
    left_of,
    live_bill,
    quantities_of,
    taken_of,
)
from traffic.calendar import day_in
from traffic.catalog import Price
from traffic.generate import Traffic
from traffic.instants import rfc3339
from traffic.meters import Quantity
from traffic.observed import observed
from traffic.once_per import Billed, counted_once
from traffic.periods import periods
from traffic.placement import MINUTE_MS, floor_minute
from traffic.script import Outcome, Record
from traffic.sequences import runs_of

Truth = dict[str, Any]
Moment = tuple[int, int, bool]
"""Milliseconds, microseconds beyond them, and whether it may lie up to the slack later."""


@dataclass(frozen=True)
class Cell:
    """What is added up: one account, model, meter, currency and price in the window that starts at `start_ms`."""

    start_ms: int
    account: str
    model: str | None
    meter: str
    currency: str | None
    price: Price | None
    is_elsewhere: bool = False
    """Whether another meter bills it."""


@dataclass
class Total:
    """The sum of a cell, and whether a straggler was added to it; None: that depends on when an audit ran."""

    quantity: int | Decimal = 0
    corrected: bool | None = False


def truth_of(traffic: Traffic) -> Truth:
    """The truth of a run. Raises UnplaceableError when an outcome's fate is not certain."""
    policy, taken = traffic.placement.policy, taken_of(traffic.taken_back)
    live = [(outcome, live_bill(traffic, outcome)) for outcome in traffic.outcomes]
    if_each_counted = [(outcome, _audited(traffic, outcome, bill, taken)) for outcome, bill in live]
    audited = counted_once(policy.meters, if_each_counted)
    of_periods, of_periods_then = periods(traffic.placement, live, audited)
    sums, stragglers = _money(traffic, live)
    sums_then, stragglers_then = _money(traffic, audited)
    _mark_touched(sums_then, sums, live, audited)
    return {
        "seed": traffic.seed,
        "tag": traffic.catalog.tag,
        "started_at": rfc3339(min(traffic.start_ms, traffic.records[0].send_at_ms)),
        "ends_at": rfc3339(last_planned_ms(traffic)),
        "policy": {
            "completion_timeout_seconds": policy.timeout_seconds(None),  # of all models the longest
            "grace_seconds": policy.grace_seconds,
            "late_policy": dict(policy.late_policy),
            "session_gap_seconds": policy.session_gap_seconds,
        },
        "left_out": list(traffic.left_out),
        "accounts": [*sorted(traffic.late.after.accounts), traffic.catalog.unknown_account],
        "kinds": dict(sorted(Counter(record.kind for record in traffic.records).items())),
        "records": list(_records(traffic)),
        "outcomes": [_outcome(traffic, *billed, taken) for billed in audited],
        "totals": list(_totals(sums)),
        "stragglers": stragglers,
        "periods": of_periods,
        "audited": {
            "totals": list(_totals(sums_then)),
            "stragglers": stragglers_then,
            "periods": of_periods_then,
        },
        "late": [o.request_id for o in traffic.outcomes if o.is_of_request and _is_certainly_late(traffic, o)],
        "sessions": list(_sessions(traffic)),
        "sources": list(_sources(traffic)),
        **({"incidents": observed(traffic)} if traffic.incidents else {}),
    }


def write(truth: Truth, path: Path) -> None:
    """Write the truth as JSON, whole or not at all."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(truth, indent=None, separators=(",", ":")))
    unfinished.replace(path)


def read(path: Path) -> Truth:
    """What `write` wrote. Raises ValueError for anything else."""
    try:
        truth: Any = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise ValueError(f"{path} cannot be read: {reason}") from problem
    if not isinstance(truth, dict) or not {"records", "outcomes", "totals"} <= truth.keys():
        raise ValueError(f"{path} is not the truth of a run: write it with `weir traffic --truth {path}`.")
    return dict(truth)


def digest(value: bytes) -> str:
    """The name of a record's bytes."""
    return hashlib.sha256(value).hexdigest()


def last_planned_ms(traffic: Traffic) -> int:
    """When the last record is to be sent."""
    return max(record.send_at_ms for record in traffic.records)


def _records(traffic: Traffic) -> Iterator[dict[str, str | None]]:
    for record in traffic.records:
        yield {
            "kind": record.kind,
            "disposition": record.disposition,
            "reason": record.reason,
            "source": record.source,
            "id": record.id,
            "digest": digest(record.value),
        }


def _is_certainly_late(traffic: Traffic, outcome: Outcome) -> bool:
    end_ms = floor_minute(outcome.event_ms) + MINUTE_MS
    late = outcome.decided_ms >= end_ms + traffic.placement.margin_ms
    return late and outcome.outcome != "superseded" and not traffic.placement.is_straggler(end_ms, outcome.decided_ms)


def _outcome(traffic: Traffic, outcome: Outcome, standing: Bill, taken: Mapping[Key, Credits | None]) -> dict[str, Any]:
    zone = known_catalog(traffic, outcome).timezone(outcome.account)
    reported, left = quantities_of(traffic, outcome), left_of(traffic, outcome, standing)
    found = {
        "account": outcome.account,
        "request_id": outcome.request_id,
        "outcome": outcome.outcome,
        "model": outcome.model,
        "day": day_in(zone, outcome.event_ms).isoformat(),
        "quantities": _texts(reported),
    }
    is_taken = (outcome.account, outcome.request_id) in taken and outcome.outcome != "superseded"
    if is_taken and taken[outcome.account, outcome.request_id] is None:
        found["left"] = None
    elif is_taken or left != reported:
        found["left"] = _texts(left)
    return found


def _texts(found: Mapping[str, Quantity]) -> dict[str, str | None]:
    return {meter: None if quantity is None else f"{quantity:f}" for meter, quantity in found.items()}


def _audited(traffic: Traffic, outcome: Outcome, live: Bill, taken: Mapping[Key, Credits | None]) -> Bill:
    """What stands after an audit; of nearly all outcomes that is what live bills."""
    key = outcome.account, outcome.request_id
    if outcome.knows_late and key not in taken:
        return live
    return audited_bill(traffic, outcome, taken.get(key, {}))


def _cells(outcome: Outcome, bill: Bill, line: Line) -> Iterator[tuple[Cell, int | Decimal]]:
    """Where a line is added up, and how much of it."""
    start_ms = floor_minute(outcome.event_ms)
    cell = Cell(start_ms, outcome.account, outcome.model, line.meter, bill.currency, line.price)
    for part, quantity in ((cell, line.own), (replace(cell, price=None, is_elsewhere=True), line.elsewhere)):
        if quantity:
            yield part, quantity


def _money(traffic: Traffic, bills: Iterable[Billed]) -> tuple[dict[Cell, Total], list[dict[str, Any]]]:
    """What bills come to, and what of them straggles."""
    placement = traffic.placement
    sums: dict[Cell, Total] = defaultdict(Total)
    stragglers = []
    for outcome, bill in bills:
        start_ms = floor_minute(outcome.event_ms)
        straggles = outcome.outcome != "superseded" and placement.is_straggler(start_ms + MINUTE_MS, outcome.decided_ms)
        for line in bill.lines:
            decision = placement.policy.late_policy.get(line.meter, "correct") if straggles else None
            if decision is not None:
                stragglers.append(
                    {
                        "account": outcome.account,
                        "model": outcome.model,
                        "request_id": outcome.request_id,
                        "meter": line.meter,
                        "window_start": rfc3339(start_ms),
                        "decision": decision,
                        "quantity": f"{line.quantity:f}",
                        "currency": bill.currency,
                        "amount": _amount(line),
                    }
                )
            if decision not in ("drop", "hold"):
                for cell, quantity in _cells(outcome, bill, line):
                    sums[cell].quantity += quantity
                    sums[cell].corrected = sums[cell].corrected or straggles
    return sums, stragglers


def _mark_touched(
    then: Mapping[Cell, Total],
    before: Mapping[Cell, Total],
    live: Iterable[Billed],
    audited: Iterable[Billed],
) -> None:
    """Of a window that an audit changes it is not known whether that was closed by then; a straggler's is corrected."""
    for (outcome, bill), (_, bill_then) in zip(live, audited, strict=True):
        if bill != bill_then:
            for of_outcome in (bill, bill_then):
                cells = (cell for line in of_outcome.lines for cell, _ in _cells(outcome, of_outcome, line))
                for cell in cells:
                    if cell in then and not then[cell].corrected:
                        then[cell].corrected = None
    for cell, total in before.items():
        if total.corrected and cell in then:
            then[cell].corrected = True


def _amount(line: Line) -> str | None:
    if not line.own:
        return "0"
    return None if line.price is None else f"{line.price.unit_price * line.own:f}"


def _totals(sums: Mapping[Cell, Total]) -> Iterator[dict[str, Any]]:
    """What is not 0 in the end."""
    for cell, total in sorted(sums.items(), key=lambda item: (item[0].start_ms, item[0].account, item[0].meter)):
        if total.quantity:
            price = cell.price
            yield {
                "account": cell.account,
                "model": cell.model,
                "meter": cell.meter,
                "currency": cell.currency,
                "window_start": rfc3339(cell.start_ms),
                "price_from": None if price is None else rfc3339(price.effective_from_ms),
                "unit_price": "0" if cell.is_elsewhere else None if price is None else f"{price.unit_price:f}",
                "quantity": f"{total.quantity:f}",
                "amount": "0" if price is None else f"{price.unit_price * total.quantity:f}",
                "corrected": total.corrected,
            }


def _sessions(traffic: Traffic) -> Iterator[dict[str, Any]]:
    gap_ms = traffic.placement.policy.session_gap_seconds * 1000
    of_user: dict[tuple[str, str], list[Moment]] = defaultdict(list)
    for activity in traffic.activity:
        of_user[activity.account, activity.user].append((activity.event_ms, activity.beyond_us, activity.moving))
    for (account, user), moments in sorted(of_user.items()):
        moments.sort()
        sessions, certain = [moments[:1]], True
        for before, moment in pairwise(moments):
            (before_ms, _, was_moving), (at_ms, _, moving) = before, moment
            room_ms = traffic.placement.margin_ms + (traffic.placement.slack_ms if moving or was_moving else 0)
            certain &= abs(at_ms - before_ms - gap_ms) > room_ms
            if at_ms - before_ms > gap_ms:
                sessions.append([moment])
            else:
                sessions[-1].append(moment)
        listed = [_session(session) for session in sessions] if certain else None
        yield {"account": account, "user_id": user, "sessions": listed}


def _session(moments: list[Moment]) -> dict[str, Any]:
    is_certain = not any(moving for *_, moving in moments)
    bounds = moments[0], moments[-1]
    start, end = (rfc3339(at_ms, 0, beyond_us) if is_certain else None for at_ms, beyond_us, _ in bounds)
    return {"start": start, "end": end, "events": len(moments)}


def _sources(traffic: Traffic) -> Iterator[dict[str, Any]]:
    heard: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in traffic.records:
        if record.disposition == "accepted" and record.source is not None:
            heard[record.source, record.source_epoch].append(record)
    for (source, epoch), records in sorted(heard.items()):
        times = [record.time and datetime.fromisoformat(record.time) for record in records]
        yield {
            "source": source,
            "source_epoch": epoch,
            "last_event_time": max(t for t in times if t).isoformat() if all(times) else None,
            "arrived": runs_of(record.sequence for record in records if record.sequence is not None),
        }
