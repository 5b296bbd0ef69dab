"""What becomes of stragglers that wait, as it must be: who decided first and in time, and what F has ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

from jobs.billing.rules import grace, holds
from jobs.runtime.effective_rules import EffectiveRules, effective_at
from jobs.streams import CatalogTopic
from metering.holding import Hold
from metering.vocabulary import UsageCause
from metering.windows import tumbling
from tests.simulation.made import Found, Row

Key = tuple[int, str]


def decisions(found: Found) -> Iterator[str]:
    """Each decision of the journal is one row of usage, in order, and was not received before F had come there."""
    journalled = [row for row in found.journal if row["topic"] == CatalogTopic.DECISIONS]
    told = [row for row in found.usage if row["cause"] == UsageCause.DECIDED]
    frontiers = {row["frontier"] for row in found.journal}
    wanted, named = [row["lsn"] for row in journalled], [row["request_lsn"] for row in told]
    if named != wanted:
        yield f"I10: the decisions {wanted} of the journal are {named} in usage"
        return
    for usage, row in zip(told, journalled, strict=True):
        after = json.loads(row["value"])["after"]
        said = {"usage_lsn": usage["corrects_lsns"][0], "meter": usage["meters"][0]["meter"]}
        said |= {name: usage[name] for name in ("account", "request_id")} | json.loads(usage["dimensions"])
        is_later = usage["received_at"] > row["received_at"] and usage["received_at"] in frontiers
        if said != after or not (usage["received_at"] == row["received_at"] or is_later):
            yield f"I10: usage {usage['lsn']} says {said}, received at {usage['received_at']}; the journal says {row}"


def first_decision(held: EffectiveRules, usage: Row, entry: Row) -> str:
    """What is decided of a straggler when it comes."""
    # A meter that billing does not know yet corrects, and so does what came in time at first.
    policy: str = held.rules["late_policy"].get(entry["meter"], "correct")
    end = tumbling(usage["event_time"]).end
    first_received_at = usage["first_received_at"]
    if first_received_at is not None and first_received_at < end + grace(held.rules).of(entry["meter"]):
        return "correct"
    if policy != "hold":
        return policy
    age = usage["received_at"] - end
    return "hold" if entry["quantity"] and _hold(held, entry["meter"]).holds(entry["amount"], age) else "correct"


def straggler_decision(held: EffectiveRules, usage: Row, meter: str) -> str:
    """What is decided of all entries of a meter: it waits if one of them does."""
    each = [first_decision(held, usage, entry) for entry in usage["meters"] if entry["meter"] == meter]
    return "hold" if "hold" in each else each[0]


def settled_in(found: Found) -> dict[Key, str]:
    """By usage lsn and meter what became of those that waited; those that would not have are here in vain."""
    by_lsn = {usage["lsn"]: usage for usage in found.outcomes}
    settled: dict[Key, str] = {}
    if not found.graces:
        return settled
    for said in (row for row in found.usage if row["cause"] == UsageCause.DECIDED):
        lsn, meter = said["corrects_lsns"][0], said["meters"][0]["meter"]
        usage, held = by_lsn.get(lsn), effective_at(found.graces, lsn)
        if usage is None or lsn > said["lsn"] or meter not in holds(held.rules) or (lsn, meter) in settled:
            continue
        is_meant = [usage[name] for name in ("account", "request_id")] == [said["account"], said["request_id"]]
        if is_meant and said["received_at"] < _until(held, usage, meter) and _waits(held, usage, meter):
            settled[lsn, meter] = json.loads(said["dimensions"])["decision"]
    for usage in found.outcomes:
        held = effective_at(found.graces, usage["lsn"])
        for meter in holds(held.rules):
            is_over = found.billed_until is not None and _until(held, usage, meter) <= found.billed_until
            if is_over and (usage["lsn"], meter) not in settled and _waits(held, usage, meter):
                settled[usage["lsn"], meter] = _hold(held, meter).expires.value
    return settled


def _waits(held: EffectiveRules, usage: Row, meter: str) -> bool:
    return any(first_decision(held, usage, one) == "hold" for one in usage["meters"] if one["meter"] == meter)


def _hold(held: EffectiveRules, meter: str) -> Hold:
    return holds(held.rules)[meter]


def _until(held: EffectiveRules, usage: Row, meter: str) -> datetime:
    return _hold(held, meter).until(usage["received_at"])
