"""What the audit says of a history: the stream made of the journal what it must, and what was found later is corrected.

What must stand in the end is said row by row, by the rules of `metering`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from jobs.audit.recompute.expected import REJOIN_WITHIN
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.effective_rules import read_history, rules_at
from metering.joining import FINAL, Decision, step
from metering.joining import Row as TimedRow
from metering.pricing import BILLED_AS_PART
from metering.vocabulary import BILLABLE, Disposition, Family, Outcome, UsageCause
from tests.simulation.audits import Examined, audit, proof
from tests.simulation.declared import OTHER, OTHER_TYPE
from tests.simulation.made import Found, Row, differ_by_key
from tests.simulation.oracle_of_aliases import price_in_force
from tests.simulation.oracle_of_contents import Bill, Content, counted_once, without
from tests.simulation.oracle_of_money import (
    FOR_EVER_US,
    SIDES,
    Meters,
    entries_of,
    metered_by,
    quantities,
    signed,
    versions,
    worth,
)
from tests.simulation.oracle_of_pairs import Event, answered
from tests.simulation.oracle_of_reports import Reported, billed, requests
from tests.simulation.oracle_of_reversals import Credits, Request, Reversal, credits_of
from tests.simulation.oracle_of_sets import BILLED
from tests.simulation.world import World
from tests.specifications.pricing import account_as_of

CONTRACTED = "contracted"
CONVENTION = '{"input_tokens": ["cached_tokens"], "output_tokens": ["reasoning_tokens"]}'
"""Of the contract that `declared.OTHER` builds on."""
Parts = tuple[int | None, int | None]
Key = tuple[str, str]
REACH = REJOIN_WITHIN // timedelta(microseconds=1)


def audited(found: Found, world: World) -> Iterator[str]:
    """I4, I8, I10: nothing is otherwise than the journal, as far as it is kept, makes it; no audit adds anything."""
    said = audit(str(world.tables), world.clock.now(), appends=False)
    if said is None:
        return
    yield from (f"audit: {wrong}" for wrong in said.faults)
    if said.appended:
        yield f"audit: {said.appended} rows are to be corrected after the last audit"
    yield from (f"audit: {wrong}" for wrong in proof(str(world.tables), world.database, world.clock.now()))
    yield from _stands(found, said)


def _stands(found: Found, said: Examined) -> Iterator[str]:
    """I8: what stands of each key is what all that is known by now makes of it."""
    keys = defaultdict(list)
    for row in found.journal:
        if row["disposition"] == Disposition.ACCEPTED and row["family"] in BILLABLE:
            keys[row["account"], row["request_id"]].append(row)
    reversals = _reversals(found)
    for row in _contracted(found, said.pinned.position):
        keys[row["account"], row["request_id"]].append(row)
    since = said.pinned.since
    whole = {
        key: rows
        for key, rows in keys.items()
        if since is None or all(r["received_at"] >= since for r in (*rows, *reversals[key]))
    }
    truth = _Truth(found)
    wanted = {
        parts: billed for key, rows in whole.items() for parts, billed in truth.of(rows, reversals[key]) if billed
    }
    told: dict[Parts, dict[Any, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for usage in found.usage:
        if (usage["account"], usage["request_id"]) not in whole:
            continue
        for entry in usage["meters"]:
            if entry["quantity"]:
                place = entry["meter"], usage["currency"], entry["unit_price"], usage["event_time"], usage["model"]
                told[usage["request_lsn"], usage["completion_lsn"]][place] += signed(usage, entry["quantity"])
    told_now: dict[Parts, Bill] = {
        parts: {place: many for place, many in billed.items() if many} for parts, billed in told.items()
    }
    stands, must = {**told_now}, counted_once(wanted, truth.contents)
    if since is not None:
        once = {meter for content in truth.contents for meter in content.said}
        stands, must = without(stands, once), without(must, once)
    found_bills, must_bills = ({parts: dict(bill) for parts, bill in each.items() if bill} for each in (stands, must))
    yield from differ_by_key("I8: outcome", found_bills, must_bills)


def _reversals(found: Found) -> defaultdict[Key, list[Row]]:
    """By key those that count: each event once."""
    firsts: dict[tuple[Key, bytes], Row] = {}
    for row in found.journal:
        if row["disposition"] == Disposition.ACCEPTED and row["family"] == Family.REVERSAL:
            firsts.setdefault(((row["account"], row["request_id"]), row["identity"]), row)
    by_key: defaultdict[Key, list[Row]] = defaultdict(list)
    for (key, _), row in firsts.items():
        by_key[key].append(row)
    return by_key


def _contracted(found: Found, position: int) -> Iterator[Row]:
    """Rows of the journal that had no contract when they came, as usage events: one came that takes them."""
    came = [
        held.first
        for held in read_history(found.journal_state)[0]
        if held.rules["contracts"].get(OTHER_TYPE) == OTHER and held.first < position
    ]
    for row in found.journal:
        is_unknown = row["disposition"] == Disposition.ACCEPTED and row["family"] is None and row["type"] == OTHER_TYPE
        if is_unknown and any(row["lsn"] < first for first in came) and not _has_more_parts_than_whole(row):
            yield {
                **row,
                "family": Family.BOTH.value,
                "quantity_includes": CONVENTION if row["cached_tokens"] or row["reasoning_tokens"] else None,
                CONTRACTED: True,
            }


def _has_more_parts_than_whole(row: Row) -> bool:
    """Such an event the contract does not take."""
    pairs = (("cached_tokens", "input_tokens"), ("reasoning_tokens", "output_tokens"))
    return any(row[part] is not None and row[whole] is not None and row[part] > row[whole] for part, whole in pairs)


class _Truth:
    """What the rows of a key come to, by all that the journal holds."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._accounts, self._prices = versions(found)
        self._meters: dict[Parts, Meters] = {}
        self._first_meters: dict[Parts, Meters] = {}
        self.contents: list[Content] = []
        """Of all outcomes that were asked for."""
        for usage, meters in metered_by(found.usage):
            parts = usage["request_lsn"], usage["completion_lsn"]
            self._first_meters.setdefault(parts, meters)
            if usage["cause"] == UsageCause.STREAM:
                self._meters[parts] = meters

    def of(self, rows: list[Row], reversals: list[Row]) -> Iterator[tuple[Parts, dict[Any, Decimal]]]:
        """By outcome the quantity of each (meter, currency, unit price, event_time, model)."""
        firsts: dict[bytes, int] = {}
        # What was validated when it came stands before what was validated later.
        for row in sorted(rows, key=lambda row: (CONTRACTED in row, row["lsn"])):
            firsts.setdefault(row["identity"], row["lsn"])
        counted = {row["lsn"]: row for row in rows if firsts[row["identity"]] == row["lsn"]}
        decisions = step((), map(self._timed, counted.values()), FOR_EVER_US)[1]
        late = {lsn for lsn, row in counted.items() if CONTRACTED in row}
        is_ranked = self._is_ranked(rows)
        joined = list(self._best(counted) if is_ranked else _rejoined(decisions, counted, late))
        taken = self._taken_back(counted, joined, reversals, is_ranked=is_ranked)
        for decision in joined:
            if (taken_off := taken.get(decision, {})) is None:
                continue
            parts = decision.request_lsn, decision.completion_lsn
            request, completion = (None if lsn is None else counted[lsn] for lsn in parts)
            if is_ranked and request is not None and completion is not None and completion["model"] is not None:
                request = {**request, "model": completion["model"]}
            yield parts, self._billed(decision.fate, parts, request, completion, taken_off, is_of_report=is_ranked)

    def _taken_back(
        self, counted: Mapping[int, Row], decisions: list[Decision], reversals: list[Row], *, is_ranked: bool
    ) -> dict[Decision, Credits | None]:
        """What reversals take off the outcomes of a key; None: all."""
        if not reversals:
            return {}
        given = [Reversal(_received(row), row["reversal_meter"], row["reversal_quantity"]) for row in reversals]
        reported = self._reported(counted)
        grouped = requests(reported, REACH) if is_ranked else _within_reach(reported)
        begun = [Request(rows[0].received, [row.lsn for row in rows]) for rows in grouped]
        return credits_of(decisions, begun, given, REACH)

    def _is_ranked(self, rows: list[Row]) -> bool:
        """Whether all rows came after the best report was to bill; what a contract takes later says nothing of it."""
        begins = (held.first for held in self._found.timeouts if held.rules.get("best_report_bills"))
        first = next(begins, FOR_EVER_US)
        known = [row["lsn"] for row in rows if CONTRACTED not in row] or [row["lsn"] for row in rows]
        return bool(min(known) >= first)

    def _best(self, counted: Mapping[int, Row]) -> Iterator[Decision]:
        """What bills of a key whose best report does."""
        for request, report in billed(self._reported(counted), REACH):
            fates = {(True, False): Outcome.ABANDONED, (False, True): Outcome.ORPHANED}
            yield Decision(fates.get((report is None, request is None), Outcome.MATCHED), request, report)

    def _reported(self, counted: Mapping[int, Row]) -> list[Reported]:
        rows = []
        for lsn, row in counted.items():
            sums = [meter.get("sums") for meter in rules_at(self._found.timeouts, lsn)["meters"].values()]
            is_counted = any(column is not None and row[column] is not None for column in sums)
            said = row["identity"], row["status"], row["usage_source"], is_counted
            rows.append(Reported(lsn, row["family"], _received(row), microseconds_of(row["event_time"]), *said))
        return rows

    def _is_lesser(self, completion: Row | None) -> bool:
        """Whether the stream waited for a better report."""
        return completion is not None and worth(completion, rules_at(self._found.timeouts, completion["lsn"])) < FINAL

    def _timed(self, row: Row) -> TimedRow:
        rules = rules_at(self._found.timeouts, row["lsn"])
        default_s, models_s = rules["completion_timeout_seconds"], rules["completion_timeouts"]
        is_completion = row["family"] == Family.COMPLETION
        seconds = max(default_s, *models_s.values(), 0) if is_completion else models_s.get(row["model"], default_s)
        times_us = microseconds_of(row["received_at"]), seconds * 1_000_000
        side, occurred_us = SIDES[Family(row["family"])], microseconds_of(row["event_time"])
        return TimedRow(row["lsn"], side, *times_us, worth(row, rules), occurred_us)

    def _meters_of(self, parts: Parts, request: Row | None, completion: Row | None) -> Meters:
        """What is counted of an outcome."""
        meters: Meters = rules_at(self._found.timeouts, max(lsn for lsn in parts if lsn is not None))["meters"]
        if any(row is not None and CONTRACTED in row for row in (request, completion)):
            # No driver has decided it when it came.
            return self._first_meters.get(parts, meters)
        # Who gave it up said what is counted of it.
        return self._meters.get(parts, meters) if None in parts or self._is_lesser(completion) else meters

    def _billed(
        self,
        fate: Outcome,
        parts: Parts,
        request: Row | None,
        completion: Row | None,
        taken_off: Credits,
        *,
        is_of_report: bool,
    ) -> dict[Any, Decimal]:
        said = completion or request
        assert said is not None
        meters = self._meters_of(parts, request, completion)
        if fate in BILLED:
            sides = [
                row for row in ((completion, request) if is_of_report else (request, completion)) if row is not None
            ]
            once = {name: meter["once_per"] for name, meter in meters.items() if "once_per" in meter}
            contents = {
                name: (rule["within"], next((row[rule["column"]] for row in sides if row[rule["column"]]), None))
                for name, rule in once.items()
            }
            self.contents.append(Content(parts, said["account"], said["event_time"], said["identity"], contents))
        at, model = said["event_time"], None if request is None else request["model"]
        contract = account_as_of(self._accounts[said["account"]], at, FOR_EVER_US)
        plan, currency = (None, None) if contract is None or contract.value is None else contract.value
        counted, decided = quantities(meters, fate, request, completion), max(lsn for lsn in parts if lsn is not None)
        units = {
            meter: price_in_force(self._prices, (plan, model, meter, currency), at, decided, FOR_EVER_US)
            for meter, quantity in counted.items()
            if fate in BILLED and quantity is not None
        }
        billed: dict[Any, Decimal] = defaultdict(Decimal)
        for meter, (quantity, version, unit_price, _) in entries_of(meters, counted, units, completion):
            is_own = version is None or version > BILLED_AS_PART
            left = _less(quantity, taken_off[meter]) if quantity and is_own and meter in taken_off else quantity
            if left:
                billed[meter, currency, unit_price, at, model] += left
        return dict(billed)


def _less(quantity: Decimal, credit: Decimal | None) -> Decimal:
    return Decimal(0) if credit is None else max(Decimal(0), quantity - credit)


def _received(row: Row) -> int:
    """When it was first received, in microseconds."""
    return microseconds_of(row["first_received_at"] or row["received_at"])


def _within_reach(rows: list[Reported]) -> Iterator[list[Reported]]:
    """Requests where the first report bills: what was first received within reach of the first row, and so on."""
    left = sorted(rows, key=lambda row: (row.received, row.lsn))
    while left:
        together = [row for row in left if row.received <= left[0].received + REACH]
        left = left[len(together) :]
        yield together


def _rejoined(decisions: list[Decision], rows: Mapping[int, Row], late: set[int]) -> list[Decision]:
    """With one pair in the place of a request and a completion that were given up and belong together."""
    alone: dict[int, Decision] = {}
    events: list[Event] = []
    for each in decisions:
        lsns = {lsn for lsn in (each.request_lsn, each.completion_lsn) if lsn is not None}
        is_matched = each.fate is Outcome.MATCHED
        if is_matched or each.fate in (Outcome.ABANDONED, Outcome.ORPHANED):
            is_request, is_late = each.fate is Outcome.ABANDONED, not late.isdisjoint(lsns)
            for lsn in lsns:
                row = rows[lsn]
                came, happened = microseconds_of(row["received_at"]), microseconds_of(row["event_time"])
                at = _received(row), is_matched, is_late
                events.append(Event(lsn, is_request, *at, came, happened, row["identity"] or b""))
            alone |= {} if is_matched else dict.fromkeys(lsns, each)
    pairs = answered(events, REACH)
    joined = {*pairs, *pairs.values()}
    kept = [d for d in decisions if d not in [alone[lsn] for lsn in joined]]
    return [*kept, *(Decision(Outcome.MATCHED, request, completion) for request, completion in pairs.items())]
