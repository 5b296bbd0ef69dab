"""Outcomes, prices and windows as they must be: I4, I6 and I10, from the rows of the journal."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from jobs.billing.rules import history_until
from jobs.journal.catalog_changes import parse_change
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.effective_rules import effective_at, parse_history, rules_at
from jobs.streams import CatalogTopic
from metering.joining import FINAL, Decision, Side, step
from metering.joining import Row as TimedRow
from metering.pricing import BILLED_AS_PART, BILLED_IN_WHOLE, Version
from metering.ranking import merit
from metering.vocabulary import BILLABLE, Disposition, Family, Outcome, Status, UsageCause
from metering.windows import tumbling
from tests.metered import EARLIER
from tests.simulation.made import Found, Row, differ_by_key
from tests.simulation.oracle_of_aliases import price_in_force
from tests.simulation.oracle_of_sets import BILLED, members_of, stored_members
from tests.simulation.oracle_of_waiting import settled_in, straggler_decision
from tests.specifications.lateness import Arrival, arrival
from tests.specifications.pricing import account_as_of

SIDES = {Family.REQUEST: Side.REQUEST, Family.COMPLETION: Side.COMPLETION, Family.BOTH: Side.BOTH}
FOR_EVER_US = 10**16
IN_WINDOWS = ("correct", "approve")
BY_WEIGHT = (*IN_WINDOWS, "hold", "drop", "reject")
"""Of several stragglers that a row stands for, the first of these holds for it, if none of them came on time."""


def outcomes(found: Found) -> Iterator[str]:
    """I4: every accepted request and completion is in exactly one outcome, the one that the rule says."""
    keys = defaultdict(list)
    billable = [
        row for row in found.journal if row["disposition"] == Disposition.ACCEPTED and row["family"] in BILLABLE
    ]
    if billable and not found.timeouts:
        yield f"I4: no outcome of {len(billable)} requests and completions"
        return
    for row in billable:
        rules = rules_at(found.timeouts, row["lsn"])
        default_s, models_s = rules["completion_timeout_seconds"], rules["completion_timeouts"]
        longest_s = max(default_s, *models_s.values(), 0)
        side = SIDES[Family(row["family"])]
        seconds = longest_s if side is Side.COMPLETION else models_s.get(row["model"], default_s)
        times_us = microseconds_of(row["received_at"]), seconds * 1_000_000
        timed = TimedRow(row["lsn"], side, *times_us, worth(row, rules), microseconds_of(row["event_time"]))
        keys[row["account"], row["request_id"]].append(timed)
    wanted: Counter[Decision] = Counter()
    for rows in keys.values():
        wanted.update(step((), rows, FOR_EVER_US)[1])
    told = Counter(
        Decision(Outcome(r["outcome"]), r["request_lsn"], r["completion_lsn"])
        for r in found.usage
        if r["cause"] == UsageCause.STREAM
    )
    if told != wanted:
        yield f"I4: outcomes {list((told - wanted).elements())} instead of {list((wanted - told).elements())}"


def worth(row: Row, rules: Mapping[str, Any]) -> int:
    """What a row's report is worth to the stream, by the rules that it found."""
    return merit(row["status"], row["usage_source"]) if rules.get("best_report_bills") else FINAL


def prices(found: Found) -> Iterator[str]:
    """I10: what an outcome says, counts and costs, from its rows, the meters then declared, the versions before it."""
    by_lsn = {row["lsn"]: row for row in found.journal}
    accounts, prices = versions(found)
    for usage, meters in metered_by(found.usage):
        if usage["cause"] != UsageCause.STREAM:
            continue
        parts = [by_lsn[lsn] for lsn in {usage["request_lsn"], usage["completion_lsn"]} if lsn is not None]
        decided = max(part["lsn"] for part in parts)
        request, completion = by_lsn.get(usage["request_lsn"]), by_lsn.get(usage["completion_lsn"])
        said = completion or request
        assert said is not None
        contract = account_as_of(accounts[usage["account"]], said["event_time"], decided)
        plan, currency = (None, None) if contract is None or contract.value is None else contract.value
        wanted: Row = {"event_time": said["event_time"], "plan": plan, "currency": currency, "sign": 1}
        wanted |= {"model": None if request is None else request["model"], "cause": "stream"}
        wanted |= {"day": said["event_time"].date(), **dict.fromkeys(EARLIER), "first_received_at": None}
        if any(part["first_received_at"] for part in parts):
            waited = usage["received_at"] - max(part["received_at"] for part in parts)
            first = max(part["first_received_at"] or part["received_at"] for part in parts)
            wanted["first_received_at"] = first + waited
        counted = quantities(meters, usage["outcome"], request, completion)
        units = {
            meter: price_in_force(prices, (plan, wanted["model"], meter, currency), said["event_time"], decided)
            for meter, quantity in counted.items()
            if usage["outcome"] in BILLED and quantity is not None
        }
        entries = list(entries_of(meters, counted, units, completion))
        wrong = {name: (usage[name], value) for name, value in wanted.items() if usage[name] != value}
        told = [(entry["meter"], tuple(entry[name] for name in ENTRY)) for entry in usage["meters"] or []]
        if sorted(told, key=repr) != sorted(entries, key=repr):
            wrong["meters"] = (told, entries)
        members = list(members_of(usage, meters, accounts[usage["account"]], prices, decided))
        if (stored := stored_members(usage)) != members:
            wrong["members"] = (stored, members)
        if wrong:
            yield f"I10: usage {usage['lsn']} of {usage['outcome']} says (instead of): {wrong}"
        # Which batch decided it, a match tells by itself: what is kept by lsn of the journal is what it was counted by.
        rules = rules_at(found.timeouts, decided)
        is_at_once = completion is not None and worth(completion, rules_at(found.timeouts, completion["lsn"])) == FINAL
        if usage["outcome"] == Outcome.MATCHED and is_at_once and rules["meters"] != meters:
            yield f"I10: usage {usage['lsn']} was counted by {meters}, but {found.timeouts} is kept for lsn {decided}"


def entries_of(
    meters: Meters, counted: Mapping[str, Any], units: Mapping[str, Version[Any] | None], completion: Row | None
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Each meter's ENTRY: a unit is billed once, by the most specific meter that has a price."""
    includes = json.loads((completion or {}).get("quantity_includes") or "{}")
    whole_of = {part: whole for whole, parts in includes.items() for part in parts}

    def wholes(name: str) -> Iterator[str]:
        columns, column = set(), meters[name]["sums"]
        while (column := whole_of.get(column)) is not None:
            columns.add(column)
        while (name := meters[name].get("within") or "") in meters:
            if counted.get(name) and meters[name]["sums"] in columns:
                yield name

    parts: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for name in counted:
        above = list(wholes(name))
        if counted[name] and above and units.get(name) is not None:
            whole = next((whole for whole in above if units.get(whole) is not None), above[-1])
            parts[whole][meters[name]["sums"]] = counted[name]
    for name, quantity in counted.items():
        unit, is_met = units.get(name), bool(quantity and list(wholes(name)))
        if is_met and unit is None:
            yield name, (quantity, BILLED_IN_WHOLE, Decimal(0), Decimal(0))
            continue
        part = min(sum(parts[name].values()), quantity or 0)
        if part:
            yield name, (part, BILLED_AS_PART, Decimal(0), Decimal(0))
        if not part or quantity != part:
            own = None if quantity is None else quantity - part
            amount = None if unit is None or unit.value is None or own is None else unit.value * own
            yield name, (own, None if unit is None else unit.lsn, unit and unit.value, amount)


ENTRY = ("quantity", "price_version", "unit_price", "amount")
Meters = Mapping[str, Mapping[str, Any]]


def metered_by(usage: list[Row]) -> Iterator[tuple[Row, Meters]]:
    """Each row with the meters that its driver has declared: the first row of a commit says what changed."""
    meters: Meters = {}
    for row in usage:
        if row["rules"] is not None:
            meters = parse_history(row["rules"])[-1].rules["meters"]
        yield row, meters


def is_looked_at(meter: Mapping[str, Any], request: Row | None, completion: Row | None) -> bool:
    """Whether the parts of an outcome say what a meter's `where` asks for."""
    of = {"status": (completion,), "model": (request,), "user_id": (request,)}
    for column, values in meter.get("where", {}).items():
        said = [part[column] for part in of.get(column, (request, completion)) if part and part[column] is not None]
        if column == "status" and completion and not set(said) & set(Status):
            said = ["completed", *said] if "completed" in values else said
        if not said or said[0] not in values:
            return False
    return True


def quantities(meters: Meters, outcome: str, request: Row | None, completion: Row | None) -> dict[str, Any]:
    """What is counted and summed of an outcome; None: not reported, though it is expected."""
    found: dict[str, Any] = {}
    for name, meter in meters.items():
        if "aggregation" in meter or not is_looked_at(meter, request, completion):
            continue
        if meter["sums"] is None:
            found |= {name: 1} if outcome in BILLED else {}
            continue
        reported = completion[meter["sums"]] if completion and outcome != Outcome.SUPERSEDED else None
        if reported is not None or (meter["expected"] and outcome == Outcome.MATCHED):
            found[name] = reported
    return found


Versions = defaultdict[Any, list[Version[Any]]]


def versions(found: Found) -> tuple[Versions, Versions]:
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
        version = Version(row["lsn"], change["effective_from"], held, change.get("ends_at"))
        (accounts if is_account else prices)[key].append(version)
    return accounts, prices


def windows(found: Found) -> Iterator[str]:
    """I6, I10: every signed quantity is in the window or the straggler that the rule says, to the last digit."""
    windows: dict[Any, Row] = {}
    stragglers: dict[Any, Row] = {}
    billed_at_once: set[tuple[int, str]] = set()
    settled = settled_in(found)
    corrected = {(lsn, row["meter"]) for row in found.corrections for lsn in row["usage_lsns"]}
    for usage in found.outcomes:
        held = effective_at(found.graces, usage["lsn"])
        window, is_from_stream = tumbling(usage["event_time"]), usage["cause"] == UsageCause.STREAM
        for entry in usage["meters"]:
            meter, quantity, version, unit, amount = (entry[name] for name in ("meter", *ENTRY))
            is_unmetered = usage["outcome"] == Outcome.MATCHED and quantity is None and is_from_stream
            if not quantity and not is_unmetered:
                continue
            quantity, amount = signed(usage, quantity), signed(usage, amount)
            grace_s = held.rules.get("meter_grace_seconds", {}).get(meter, held.rules["grace_seconds"])
            grace, closed_before = timedelta(seconds=grace_s), held.closed_before.of(meter)
            first = usage["first_received_at"] or usage["received_at"]
            until = history_until(held.rules)
            is_history = until is not None and window.end <= until and first < usage["received_at"]
            came = arrival(usage["received_at"], window, grace, closed_before) if is_from_stream else None
            if is_from_stream and is_history:
                # Billed elsewhere: it arrives as it did then, whatever had closed here.
                came = arrival(first, window, grace)
            decision = None
            if came is Arrival.STRAGGLER:
                decision = settled.get((usage["lsn"], meter)) or straggler_decision(held, usage, meter)
            if not is_from_stream:
                decision = inherited(stragglers, billed_at_once, usage, meter)
            if decision is None and quantity:
                billed_at_once.add((usage["lsn"], meter))
            is_late = is_from_stream and decision is None and first >= window.end
            if decision is not None and quantity:
                row = {
                    "decision": decision,
                    "quantity": quantity,
                    "amount": amount,
                    "unit_price": unit,
                    "window_start": window.start,
                    "price_version": version,
                    **{name: usage[name] for name in COPIED},
                }
                # What another meter bills comes after the rest, and is a part of its straggler.
                first_entry = stragglers.setdefault((usage["lsn"], meter), row)
                if first_entry is not row:
                    first_entry["quantity"] += quantity
            if decision is not None and decision not in IN_WINDOWS:
                continue
            key = (window.start, usage["account"], usage["model"], meter, usage["currency"], version)
            row = windows.setdefault(key, {**_EMPTY, "unit_price": unit})
            row["quantity"] += quantity or 0
            row["late_rows"] += int(bool(quantity) and is_late)
            row["late_quantity"] += quantity or 0 if is_late else 0
            row["unmetered_rows"] += int(is_unmetered)
            row["corrected"] |= bool(quantity) and (came is Arrival.STRAGGLER or (usage["lsn"], meter) in corrected)
    names = ("window_start", "account", "model", "meter", "currency", "price_version")
    told = {tuple(row[name] for name in names): {n: row[n] for n in (*_EMPTY, "unit_price")} for row in found.windows}
    yield from differ_by_key("I6: window", told, windows)
    if len(told) != len(found.windows):
        yield "I6: two windows have one key"
    yield from differ_by_key(
        "I6: straggler",
        {(r["usage_lsn"], r["meter"]): {n: r[n] for n in OF_STRAGGLER} for r in found.stragglers},
        stragglers,
    )


def inherited(
    stragglers: Mapping[Any, Row], billed_at_once: Iterable[tuple[int, str]], usage: Row, meter: str
) -> str | None:
    """What holds for an entry that stands for others: what replaces usage that came on time is billed.

    A better report is with all that it reports; anything else meter by meter.
    """
    named = usage["corrects_lsns"] or ()
    is_whole = usage["cause"] == UsageCause.RESTATED and usage["sign"] > 0
    if any(lsn in named and (is_whole or other == meter) for lsn, other in billed_at_once):
        return None
    of_named = {stragglers[lsn, meter]["decision"] for lsn in named if (lsn, meter) in stragglers}
    return next((one for one in BY_WEIGHT if one in of_named), None)


def signed(usage: Row, number: Any) -> Any:
    """A quantity or amount as its row says it."""
    return number if number is None else usage["sign"] * number


def corrections(found: Found) -> Iterator[str]:
    """I8: each straggler that corrects is one correction, and what takes it back; a window is what all of it makes."""
    of_windows = [row for row in found.corrections if row["period"] is None]
    decisions = {(row["usage_lsn"], row["meter"]): row["decision"] for row in found.stragglers}
    correcting = sorted(each for each, decision in decisions.items() if decision in IN_WINDOWS)
    told = [(lsn, row["meter"]) for row in of_windows for lsn in row["usage_lsns"]]
    if sorted(each for each in told if each in decisions) != correcting or len(told) != len(set(told)):
        yield f"I8: the corrections are {told}, but {correcting} correct"
    if any(row["usage_lsn"] != min(row["usage_lsns"]) for row in of_windows):
        yield "I8: a correction is not named by its lowest usage lsn"
    decided = {(row["usage_lsn"], row["meter"]) for row in found.stragglers if row["decision"] not in IN_WINDOWS}
    decided |= set(told)
    sums: defaultdict[tuple[Any, ...], list[Decimal]] = defaultdict(lambda: [Decimal(0), Decimal(0)])
    for usage in found.outcomes:
        for entry in usage["meters"]:
            if entry["quantity"] and (usage["lsn"], entry["meter"]) not in decided:
                start, meter = tumbling(usage["event_time"]).start, entry["meter"]
                key = start, usage["account"], usage["model"], meter, usage["currency"]
                sums[key][0] += signed(usage, entry["quantity"])
                sums[key][1] += signed(usage, entry["amount"]) or 0
    names = ("window_start", "account", "model", "meter", "currency")
    for row in of_windows:
        sums[tuple(row[name] for name in names)][0] += row["new_quantity"] - row["old_quantity"]
        sums[tuple(row[name] for name in names)][1] += (row["new_amount"] or 0) - (row["old_amount"] or 0)
    for row in found.windows:
        sums[tuple(row[name] for name in names)][0] -= row["quantity"]
        sums[tuple(row[name] for name in names)][1] -= row["amount"] or 0
    for key, left in sums.items():
        if any(left):
            yield f"I8: window {key} differs by {left} from what it was and its corrections"


COPIED = ("account", "model", "currency", "request_id")
OF_STRAGGLER = ("decision", "quantity", "amount", "unit_price", "window_start", "price_version", *COPIED)
_EMPTY: Row = {
    "quantity": Decimal(0),
    "late_rows": 0,
    "late_quantity": Decimal(0),
    "unmetered_rows": 0,
    "corrected": False,
}
