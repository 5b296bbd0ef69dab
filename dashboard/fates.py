"""What became of a request or an event, in sentences, from the document that `weir explain` prints."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from dashboard.exact import total
from dashboard.wording import instant, minute, money, several, spaced
from metering.digits import EXACT
from metering.pricing import BILLED_AS_PART
from metering.quantity_events import is_of_quantity
from metering.vocabulary import BILLED, Decision, Disposition, Outcome, UsageCause
from metering.windows import tumbling

CAUSES: Mapping[str, str] = {
    UsageCause.STREAM: "straggler",
    UsageCause.DUPLICATE: "billed twice",
    UsageCause.REJOINED: "late partner",
    UsageCause.REPRICED: "late price",
    UsageCause.SCHEMA_ADDED: "late contract",
    UsageCause.CONTRACTED: "late contract",
    UsageCause.RESTATED: "better report",
    UsageCause.REVERSED: "reversal",
    UsageCause.ONCE_PER: "same content",
}
"""Why a closed window changed, as pages say it."""

_OUTCOMES: Mapping[str, str] = {
    Outcome.MATCHED: "a request with its completion",
    Outcome.ABANDONED: "a request that was abandoned: no completion came in time",
    Outcome.ORPHANED: "a completion that was orphaned: no request came in time",
    Outcome.SUPERSEDED: "superseded: another event of its request counts, so it bills nothing",
}
MAX_REQUESTS = 5
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Fate:
    """`is_settled`: nothing has to come or to be decided any more. `is_billed`: something of it is on a bill."""

    sentence: str
    is_settled: bool = True
    is_billed: bool = False


def fates(document: Row, text: str) -> tuple[Fate, ...]:
    """What became of an id; of many requests of the same id, of the first MAX_REQUESTS."""
    usage: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in document["usage"]:
        if row["cause"] != UsageCause.DECIDED:
            usage[row["account"], row["request_id"]].append(row)
    of_requests = [_of_usage(rows, document) for rows in usage.values()][:MAX_REQUESTS]
    if len(usage) > 1:
        names = [f"{account}, request {request_id}: " for account, request_id in usage]
        of_requests = [
            replace(fate, sentence=name + fate.sentence) for name, fate in zip(names, of_requests, strict=False)
        ]
    if len(usage) > MAX_REQUESTS:
        of_requests.append(Fate(f"Many requests have this id; only {MAX_REQUESTS} are shown here."))
    of_requests += [Fate(f"Reversal: {reversal['explanation']}.") for reversal in document["reversals"][:MAX_REQUESTS]]
    of_requests += [Fate(f"Counted once: {content['explanation']}.") for content in document["contents"][:MAX_REQUESTS]]
    reversals = {reversal["lsn"] for reversal in document["reversals"]}
    records = [row for row in document["records"] if row["lsn"] not in reversals]
    received = tuple(_of_records(records, text, in_usage=bool(usage)))
    # Of an event its own record comes first, of a request what it costs.
    is_event = any(row["id"] == text for row in document["records"])
    return (*received, *of_requests) if is_event else (*of_requests, *received)


def _of_records(records: Sequence[Row], text: str, *, in_usage: bool) -> Iterator[Fate]:
    """The verdict on the records with this id; for an event in usage, what else it received."""
    own = [row for row in records if row["id"] == text]
    found = own or [row for row in records if row["request_id"] == text]
    kept = [row for row in found if row["disposition"] == Disposition.ACCEPTED]
    if kept and not in_usage:
        yield _waits(kept[0])
    others = [row for row in found if row["disposition"] != Disposition.ACCEPTED]
    if len(others) == 1 or (others and not kept):
        yield Fate(_refused(others[0]))
        others = others[1:]
    for disposition, count in Counter(row["disposition"] for row in others).items():
        yield Fate(f"{several(count, 'more record')} with this id: {disposition}.")


def _waits(record: Row) -> Fate:
    if record["request_id"] is None:
        return Fate(f"Accepted as lsn {record['lsn']}. It belongs to no request, so it is on no bill.")
    return Fate(
        f"Accepted as lsn {record['lsn']}, and in no usage yet: it waits for its other part, or for its "
        "timeout. It is on no bill.",
        is_settled=False,
    )


def _refused(record: Row) -> str:
    match record["disposition"]:
        case Disposition.DUPLICATE:
            return f"Lsn {record['lsn']} is a duplicate of lsn {record['first_lsn']}: only that one counts."
        case Disposition.CONFLICT:
            return (
                f"Lsn {record['lsn']} is in conflict with lsn {record['first_lsn']}: the same identity has other "
                "content. The first counts, this one does not."
            )
        case _:
            why = f" ({record['violation']})" if record["violation"] else ""
            return f"Lsn {record['lsn']} was rejected as {record['reason']}{why}: it is on no bill."


def _of_usage(rows: Sequence[Row], document: Row) -> Fate:
    """Of all rows of usage of one request."""
    negated = {lsn for row in rows if row["sign"] < 0 for lsn in row["corrects_lsns"]}
    standing = [row for row in rows if row["sign"] > 0 and row["lsn"] not in negated]
    causes = sorted(CAUSES[cause] for cause in {row["cause"] for row in rows} - {UsageCause.STREAM})
    corrected = f" Corrected since by the audit ({', '.join(causes)})." if causes else ""
    if not standing:
        return Fate(f"Taken back: it adds nothing to any bill.{corrected}")
    newest = standing[-1]
    is_what = f"It is {_what(newest)}."
    if not newest["is_billed"]:
        return Fate(f"Waits for billing to read it from usage. {is_what}{corrected}", is_settled=False)
    by_decision: defaultdict[str, list[Row]] = defaultdict(list)
    for row in standing:
        for meter in row["meters"]:
            if meter["quantity"]:
                decision = meter["decision"]
                by_decision["" if decision is None or decision in BILLED else decision].append(meter)
    billed = by_decision.pop("", [])
    parts = [_decided(newest, decision, found, document) for decision, found in sorted(by_decision.items())]
    if billed:
        parts.insert(0, f"{_amounts(rows, billed)} {_where(newest, billed, document)}.")
    elif not parts:
        parts.append("Counted with nothing to bill.")
    sentence = f"{' '.join(parts)} {is_what}{corrected}"
    return Fate(sentence, is_settled=Decision.HOLD not in by_decision, is_billed=bool(billed))


def _what(row: Row) -> str:
    is_quantity = is_of_quantity(row["request_id"]) and row["outcome"] == Outcome.MATCHED
    return "a quantity without a request" if is_quantity else _OUTCOMES[row["outcome"]]


def _amounts(rows: Sequence[Row], billed: Sequence[Row]) -> str:
    """What all rows of a request add to the bill by now."""
    amounts: defaultdict[str, list[Decimal]] = defaultdict(list)
    for row in rows:
        for meter in row["meters"]:
            counts = meter["decision"] is None or meter["decision"] in BILLED
            # Where the account has no currency, units that another meter bills are worth 0 of none.
            if row["is_billed"] and counts and meter["amount"] is not None and row["currency"] is not None:
                amounts[row["currency"]].append(EXACT.multiply(meter["amount"], row["sign"]))
    unpriced = [spaced(meter["meter"]) for meter in billed if meter["price_version"] is None]
    by_total = [spaced(meter["meter"]) for meter in billed if _is_tiered(meter)]
    if len(unpriced) == len(billed) or not (amounts or by_total):
        return "Counted without a price, so it costs nothing yet:"
    costs = " and ".join(money(total(found), currency) for currency, found in sorted(amounts.items()))
    others = f" (and {', '.join(unpriced)} without a price)" if unpriced else ""
    if not by_total:
        return f"Billed: {costs}{others}"
    named = f"{', '.join(by_total)} by the month's total, which tiers or packages price"
    return f"Billed: {f'{costs}, and {named}' if amounts else named}{others}"


def _is_tiered(meter: Row) -> bool:
    """Whether only the month's total says what it costs."""
    return meter["price_version"] is not None and meter["unit_price"] is None


def _where(row: Row, billed: Sequence[Row], document: Row) -> str:
    """Window, day and versions of prices."""
    start = tumbling(row["event_time"]).start
    key = (start, row["account"], row["model"])
    states = {
        window["state"]
        for window in document["windows"]
        if (window["window_start"], window["account"], window["model"]) == key
    }
    day = f", on the account's day {row['day']}" if row["day"] else ""
    versions = sorted({meter["price_version"] for meter in billed if (meter["price_version"] or 0) > BILLED_AS_PART})
    word = "version" if len(versions) == 1 else "versions"
    price = f", at price {word} {', '.join(map(str, versions))}" if versions else ""
    return f"in the minute {minute(start)} UTC ({', '.join(sorted(states)) or 'unknown'}){day}{price}"


def _decided(row: Row, decision: str, meters: Sequence[Row], document: Row) -> str:
    """What became of meters that came after their window's grace and are on no bill."""
    names = ", ".join(sorted({spaced(meter["meter"]) for meter in meters}))
    waiting = [
        straggler
        for straggler in document["stragglers"]
        if (straggler["account"], straggler["request_id"], straggler["decision"])
        == (row["account"], row["request_id"], decision)
    ]
    straggler: Row = waiting[0] if waiting else {"hold_until": None, "decided_by": None, "reason": None}
    match decision:
        case Decision.HOLD:
            until = f", at most to {instant(straggler['hold_until'])} UTC" if straggler["hold_until"] else ""
            return f"Held: {names}, received after grace, waits for a decision{until}; not billed."
        case Decision.DROP:
            return f"Dropped: {names}, received after grace; on no bill."
        case _:
            who = f" by {straggler['decided_by']} ({straggler['reason']})" if straggler["decided_by"] else ""
            return f"Rejected{who}: {names}, received after grace; on no bill."
