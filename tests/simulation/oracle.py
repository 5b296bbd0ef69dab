"""What must hold at the end of a history, recomputed at once: row by row, by the rules of `metering`, from what Kafka
holds and from the order that the journal gave to it.

The checks are those of docs/design.md, section 8. I7 and I9 speak of invoices, which no history closes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from jobs.billing.config import BillingConfig
from jobs.billing.rules import history_until
from jobs.joins.config import JoinsConfig
from jobs.runtime.config import JobConfig
from jobs.runtime.effective_rules import effective_at
from jobs.sessionization.config import SessionizationConfig
from jobs.settings.meters import MeterConfig
from metering.instants import rfc3339
from metering.sessions import Session, merge
from metering.vocabulary import LatePolicy
from metering.windows import tumbling
from tests.simulation.made import Found, Row, differ_by_key, found_in
from tests.simulation.oracle_by_audit import audited
from tests.simulation.oracle_of_dimensions import dimensions
from tests.simulation.oracle_of_journal import dispositions, frontiers, journal, received
from tests.simulation.oracle_of_money import corrections, outcomes, prices, windows
from tests.simulation.oracle_of_outbox import outbox
from tests.simulation.oracle_of_sets import sets
from tests.simulation.oracle_of_waiting import decisions
from tests.simulation.rules import is_session_event
from tests.simulation.world import World


def differences(world: World) -> Iterator[str]:
    """A sentence for each promise that is broken; none for a history that ended as it must."""
    found = found_in(world)
    yield from journal(found, world)
    yield from received(found, world)
    yield from frontiers(found)
    yield from dispositions(found)
    yield from outcomes(found)
    yield from prices(found)
    yield from dimensions(found)
    yield from decisions(found)
    yield from windows(found)
    yield from corrections(found)
    yield from sets(found)
    yield from outbox(found)
    yield from _sessions(found)
    yield from _closed(found, world)
    yield from _rules(found, world)
    yield from audited(found, world)


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
    yield from differ_by_key("I5: session", told, wanted)


def _session(row: Row) -> Row:
    return {"end": row["session_end"], "events": row["events"]}


def _closed(found: Found, world: World) -> Iterator[str]:
    """What was shown closed stays: a window but for stragglers, a session but for its retraction.

    A window that was billed elsewhere (`history_until`) may take more of its past.
    """
    told = {(row["usage_lsn"], row["meter"]) for row in found.stragglers}
    told |= {(lsn, row["meter"]) for row in found.corrections for lsn in row["usage_lsns"]}
    for position, closed_until in world.closed_usage:
        for row in found.usage[position - 1 :]:
            end = tumbling(row["event_time"]).end
            until = history_until(effective_at(found.graces, row["lsn"]).rules) if found.graces else None
            if until is not None and end <= until and row["first_received_at"] not in (None, row["received_at"]):
                continue
            for meter in (entry["meter"] for entry in row["meters"] if entry["quantity"]):
                is_in_closed = end <= closed_until.get(meter, datetime.min.replace(tzinfo=UTC))
                if is_in_closed and (row["lsn"], meter) not in told:
                    yield f"I6: {meter} of usage {row['lsn']} is in a window that was shown closed, and nobody is told"
    names = ("account", "user_id", "session_start", "session_end", "events")
    stored = {row["session_id"]: tuple(row[name] for name in names) for row in found.sessions}
    for session_id, shown in world.closed_sessions.items():
        if stored.get(session_id) != shown:
            yield f"I5: session {session_id} was shown closed as {shown}, and is {stored.get(session_id)}"


def _rules(found: Found, world: World) -> Iterator[str]:
    """What decided last is what was configured last: all else here is recomputed by the rules that are stored."""
    joins, billing, sessionization = (world.configured(name) for name in ("joins", "billing", "sessionization"))
    assert isinstance(joins, JoinsConfig)
    assert isinstance(billing, BillingConfig)
    assert isinstance(sessionization, SessionizationConfig)
    reports = {"best_report_bills", "rejoin_seconds"} if joins.best_report_bills else set()
    timeouts = joins.model_dump(mode="json", include={"completion_timeout_seconds", "completion_timeouts"} | reports)
    policies = {
        name: meter.late_policy or billing.late_policy.get(name, LatePolicy.CORRECT) for name, meter in _meters(billing)
    }
    own = {name: meter.grace_seconds for name, meter in _meters(billing) if meter.grace_seconds is not None}
    holds = {name: _held(billing, meter) for name, meter in _meters(billing) if policies[name] == "hold"}
    last = found.graces[-1].rules if found.graces else {}
    started = [driver.config for driver in world.drivers["billing"]]
    for name in last.get("late_policy", {}).keys() - policies:
        # It is declared no more, and goes by what was said of it.
        policies[name] = last["late_policy"][name]
        own |= {name: last["meter_grace_seconds"][name]} if name in last.get("meter_grace_seconds", {}) else {}
        holds |= {name: last["hold"][name]} if name in last.get("hold", {}) else {}
        said = [config.deciding for config in started if name in config.meters]
        if (policies[name], own.get(name), holds.get(name)) not in [
            (rules["late_policy"][name], *(rules.get(key, {}).get(name) for key in ("meter_grace_seconds", "hold")))
            for rules in said
        ]:
            yield f"I6: {name}, declared no more, goes by {last}, not by any of {said}"
    graces = {"grace_seconds": billing.grace_seconds, "late_policy": policies}
    graces |= {"meter_grace_seconds": own} if own else {}
    graces |= {"hold": holds} if holds else {}
    graces |= {} if billing.history_until is None else {"history_until": rfc3339(billing.history_until)}
    counted = {name: _counts(meter) for name, meter in _meters(joins)}
    for name, history, configured in (
        ("joins", found.timeouts, {**timeouts, "meters": counted, "dimensions": list(joins.dimensions)}),
        ("billing", found.graces, graces),
    ):
        if [held.rules for held in history[-1:]] != [configured]:
            yield f"I10: {name} decides by {history[-1:]}, not by {configured}"
    if [gap for _, gap in found.gaps[-1:]] != [sessionization.session_gap]:
        yield f"I5: sessions are cut by {found.gaps}, not by {sessionization.session_gap}"
    kept = {name: (row["unit"], row["sums"]) for name, row in found.meters.items()}
    for held in found.timeouts:
        for name, meter in held.rules["meters"].items():
            if kept.get(name) != (meter["unit"], meter["sums"] if "sums" in meter else meter["column"]):
                yield f"I10: {name} was {meter}, but {kept.get(name)} is kept of it"
    if (declared := {name for name, row in found.meters.items() if row["is_declared"]}) != set(joins.meters):
        yield f"I10: {declared} are said to be declared, not {set(joins.meters)}"


def _meters(config: JobConfig) -> Iterable[tuple[str, MeterConfig]]:
    return config.meters.items()


def _held(billing: BillingConfig, meter: MeterConfig) -> Row:
    hold = meter.hold or billing.hold
    said: Row = {"seconds": hold.seconds, "expires": hold.expires, "above_age_seconds": hold.above_age_seconds}
    said |= {"above_amount": None if hold.above_amount is None else str(hold.above_amount)}
    return {name: value for name, value in said.items() if value is not None}


def _counts(meter: MeterConfig) -> Row:
    if meter.unique is not None and meter.period is not None:
        period = meter.period.value
        return {"unit": meter.unit, "aggregation": "unique", "column": meter.unique, "period": period}
    said: Row = {"unit": meter.unit, "sums": meter.sum, "expected": _is_expected(meter)}
    said |= {} if meter.within is None else {"within": meter.within}
    listed = {column: each if isinstance(each, list) else [each] for column, each in (meter.where or {}).items()}
    said |= {} if meter.once_per is None else {"once_per": meter.once_per.model_dump(mode="json")}
    return said | ({"where": {column: sorted(values) for column, values in listed.items()}} if listed else {})


def _is_expected(meter: MeterConfig) -> bool:
    return meter.expected if meter.expected is not None else meter.sum in ALWAYS_REPORTED


ALWAYS_REPORTED = ("input_tokens", "output_tokens", "cached_tokens")
