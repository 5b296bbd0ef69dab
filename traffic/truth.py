"""What must come of a run of traffic, computed from the script alone, with exact decimals.

The truth is a JSON object (instants RFC 3339 in UTC, amounts as strings):

* `records`: per record `kind, disposition, reason, source, id, digest` (SHA-256 of the bytes);
* `outcomes`: per request outcome `account, request_id, outcome, model`;
* `totals`: per `account, model, meter, currency, window_start` the `quantity, amount, unpriced_quantity`, without what
  a dropped straggler would have added;
* `stragglers`: `account, request_id, meter, window_start, decision, quantity, amount`; those of quantity 0 left out;
* `sessions`: per `account, user_id` the sorted numbers of events of each session; null where a gap is too near to tell;
* `late`: outcomes that are certainly late.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

from traffic.catalog import METERS
from traffic.generate import Traffic
from traffic.instants import rfc3339
from traffic.placement import MINUTE_MS, floor_minute
from traffic.script import Outcome

Truth = dict[str, Any]
Cell = tuple[str, str | None, str, int]
"""Account, model, meter, start of the window in milliseconds."""


def truth_of(traffic: Traffic) -> Truth:
    """The truth of a run. Raises UnplaceableError when an outcome's fate is not certain."""
    totals, stragglers = _money(traffic)
    policy = traffic.placement.policy
    return {
        "seed": traffic.seed,
        "tag": traffic.catalog.tag,
        "started_at": rfc3339(traffic.start_ms),
        "ends_at": rfc3339(last_planned_ms(traffic)),
        "policy": {
            "completion_timeout_seconds": policy.timeout_seconds(None),  # of all models the longest
            "grace_seconds": policy.grace_seconds,
            "late_policy": dict(policy.late_policy),
            "session_gap_seconds": policy.session_gap_seconds,
        },
        "left_out": list(traffic.left_out),
        "accounts": sorted(traffic.catalog.accounts),
        "kinds": dict(sorted(Counter(record.kind for record in traffic.records).items())),
        "records": list(_records(traffic)),
        "outcomes": [
            {"account": o.account, "request_id": o.request_id, "outcome": o.outcome, "model": o.model}
            for o in traffic.outcomes
        ],
        "totals": totals,
        "stragglers": stragglers,
        "late": [o.request_id for o in traffic.outcomes if _is_certainly_late(traffic, o)],
        "sessions": list(_sessions(traffic)),
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
        raise ValueError(f"{path} cannot be read: {problem}") from problem
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


def _money(traffic: Traffic) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    catalog, placement = traffic.catalog, traffic.placement
    sums: dict[Cell, list[Any]] = defaultdict(lambda: [0, Decimal(0), 0])
    stragglers = []
    for outcome in traffic.outcomes:
        start_ms = floor_minute(outcome.event_ms)
        straggles = outcome.outcome != "superseded" and placement.is_straggler(start_ms + MINUTE_MS, outcome.decided_ms)
        for meter, quantity in zip(METERS, outcome.quantities, strict=True):
            if not quantity:
                continue
            price = catalog.unit_price(outcome.account, outcome.model, meter, outcome.event_ms)
            amount = None if price is None else price * quantity
            decision = placement.policy.late_policy.get(meter, "correct") if straggles else None
            if decision is not None:
                stragglers.append(
                    {
                        "account": outcome.account,
                        "request_id": outcome.request_id,
                        "meter": meter,
                        "window_start": rfc3339(start_ms),
                        "decision": decision,
                        "quantity": str(quantity),
                        "amount": None if amount is None else f"{amount:f}",
                    }
                )
            if decision != "drop":
                cell = sums[outcome.account, outcome.model, meter, start_ms]
                cell[0] += quantity
                cell[1] += amount or 0
                cell[2] += quantity if price is None else 0
    return list(_totals(traffic, sums)), stragglers


def _totals(traffic: Traffic, sums: Mapping[Cell, list[Any]]) -> Iterator[dict[str, Any]]:
    in_order = sorted(sums.items(), key=lambda cell: (cell[0][3], cell[0][0], cell[0][1] or "", cell[0][2]))
    for (account, model, meter, start_ms), (quantity, amount, unpriced) in in_order:
        yield {
            "account": account,
            "model": model,
            "meter": meter,
            "currency": traffic.catalog.accounts[account].currency,
            "window_start": rfc3339(start_ms),
            "quantity": str(quantity),
            "amount": f"{amount:f}",
            "unpriced_quantity": str(unpriced),
        }


def _sessions(traffic: Traffic) -> Iterator[dict[str, Any]]:
    gap_ms = traffic.placement.policy.session_gap_seconds * 1000
    of_user: dict[tuple[str, str], list[tuple[int, bool]]] = defaultdict(list)
    for activity in traffic.activity:
        of_user[activity.account, activity.user].append((activity.event_ms, activity.moving))
    for (account, user), moments in sorted(of_user.items()):
        moments.sort()
        events, certain = [1], True
        for (before_ms, was_moving), (at_ms, moving) in pairwise(moments):
            room_ms = traffic.placement.margin_ms + (traffic.placement.slack_ms if moving or was_moving else 0)
            certain &= abs(at_ms - before_ms - gap_ms) > room_ms
            if at_ms - before_ms > gap_ms:
                events.append(1)
            else:
                events[-1] += 1
        yield {"account": account, "user_id": user, "events": sorted(events) if certain else None}
