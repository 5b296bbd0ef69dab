"""The document of an explanation as lines to read, from the bill down to the records as received."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from cli.output import printable
from metering.csv_lines import text_of
from metering.digits import exact_sum
from metering.price_models import model_words
from metering.pricing import BILLED_AS_PART, BILLED_IN_WHOLE
from metering.vocabulary import Decision, UsageCause

SHOWN_CHARACTERS = 200
Document = Mapping[str, Any]


def print_explanation(document: Document, out: TextIO | None = None) -> None:
    """Print a document (`explanation`), each step with a heading; JSON has all of it."""
    from rich.console import Console
    from rich.text import Text

    out = out or sys.stdout
    console = Console(file=out, soft_wrap=True, highlight=False)
    for style, line in _lines(document):
        console.print(Text(printable(line), style=style))


def _lines(document: Document) -> Iterator[tuple[str, str]]:
    """Styles and lines."""
    steps = (
        ("Session", [document["session"]] if "session" in document else [], _session),
        ("Line of the bill", document["line"] or [], _line),
        ("Included by the plan, at nothing", document.get("included", []), _included),
        ("Fees of plans, beside usage", document.get("fees", []), _fee),
        ("Members", document.get("members", []), _member),
        ("Price versions", document["prices"], _price),
        ("Windows", document["windows"], _window),
        ("Corrections", document["corrections"], _correction),
        ("Stragglers", document["stragglers"], _straggler),
        ("Usage", document["usage"], _usage),
        ("Outcomes", document["outcomes"], _outcome),
        ("Reports", document["reports"], _report),
        ("Reversals", document["reversals"], _reversal),
        ("Contents", document["contents"], _content),
        ("Records", document["records"], _record),
    )
    for heading, rows, lines_of in steps:
        if rows:
            yield "bold", heading
        for row in rows:
            yield from (("", f"  {line}") for line in lines_of(row))
    if not any(document[name] for name in ("usage", "windows", "stragglers", "corrections")):
        yield "", "It has no usage yet, so it is on no bill: it may wait for its other part, or for joins."
    if document["cut"]:
        there_are = ", ".join(f"{name} {count}" for name, count in document["cut"].items())
        yield "yellow", f"Not all is shown ({there_are}). Raise --limit."
        if document["usage_summed"] < document["cut"].get("usage", 0):
            yield "yellow", f"Sums are of the first {document['usage_summed']} rows of usage only."
    for problem in document["differences"]:
        yield "red", problem
    yield _verdict(document)


def _verdict(document: Document) -> tuple[str, str]:
    match document["adds_up"]:
        case True:
            return "green", "It adds up."
        case False:
            return "red", "It does not add up."
    since = document["usage_removed_before"]
    return "yellow", f"Whether it adds up is unknown: `weir retain` has removed usage of the days before {since}."


def _session(row: Document) -> Iterator[str]:
    times = f"{_text(row['session_start'])} to {_text(row['session_end'])}"
    replaced = ", replaced by a later version" if row["retracted_at"] else ""
    yield f"{row['account']} {row['user_id']}, {times}: {row['events']} events, version {row['version']}{replaced}"


def _line(row: Document) -> Iterator[str]:
    part = f"; of it {_contributed(row['contribution'], row)}" if row["contribution"] else ""
    yield f"{row['account']} {row['month']}, {_what(row)}: {_product(row)}{part}"


def _included(row: Document) -> Iterator[str]:
    yield f"{_what(row)}: {_text(row['quantity'])} (price version {row['price_version']})"


def _fee(row: Document) -> Iterator[str]:
    amount = "not known yet" if row["amount"] is None else f"{_text(row['amount'])} {row['currency']}"
    yield f"{row['fee']} of plan {row['plan']}, {row['days']} day{'s' * (row['days'] != 1)}: {amount}"


def _member(row: Document) -> Iterator[str]:
    member = row["member"] if row["value"] is None else _text(row["value"])
    is_other = "" if row["is_billed"] else ", not the one that is billed"
    yield (
        f"{row['period']} from {row['first_day']}, {_what(row)}, 1 of {row['members']}: {member}{is_other}, by "
        f"{row['member_rows']} rows of usage{_added_by(row)}"
    )


def _added_by(row: Document) -> str:
    if row["usage_lsn"] is None:
        return ""
    return f", first {row['request_id']} (lsn {row['usage_lsn']}), occurred {_text(row['event_time'])}"


def _price(row: Document) -> Iterator[str]:
    record = row["record"]
    costs = row["terms"] or row["unit_price"]
    price = "withdrawn" if row["deleted"] else f"{_text(costs)} {row['currency']}"
    of = f"{model_words(row['model'])} {row['meter']}, plan {row['plan']}"
    yield f"version {row['price_version']}, {of}: {price} from {_text(row['effective_from'])}"
    yield f"  {_changed(row)}"
    if record is None:
        yield "  the journal no longer has its record"
    else:
        yield f"  committed {_text(row['committed_at'])}, reported by {_text(row['reported_by'])} in {_place(record)}"


def _changed(row: Document) -> str:
    """Who made it the price."""
    if row["changed_by"] is not None:
        return f"changed by {row['changed_by']}, {_text(row['changed_at'])}"
    why = "a deleted row no longer has it" if row["deleted"] else "of a release that did not keep it"
    return f"changed by unknown ({why})"


def _window(row: Document) -> Iterator[str]:
    unpriced = f", of which {_text(row['unpriced_quantity'])} without a price" if row["unpriced_quantity"] else ""
    of_month = exact_sum(version["quantity"] for version in row["price_versions"] if _is_by_total(version))
    by_total = f", of which {_text(of_month)} priced by the month's total" if of_month else ""
    versions = row["price_versions"]
    has_amount = not versions or not all(_has_no_amount(version) for version in versions)
    whole, part = (_sum(of, row) if has_amount else _text(of["quantity"]) for of in (row, row["contribution"]))
    yield (
        f"{row['account']} {_text(row['window_start'])}, {_what(row)}, {row['state']}: {whole}{unpriced}{by_total}; "
        f"of it {part}"
    )
    for version in versions:
        priced = {**row, **version}
        yield f"  {_product(priced)}; of it {_contributed(version['contribution'], priced)}"


def _correction(row: Document) -> Iterator[str]:
    old, new = (
        _sum({"quantity": row[f"{side}_quantity"], "amount": row[f"{side}_amount"]}, row) for side in ("old", "new")
    )
    rows = ", ".join(map(str, row["usage_lsns"]))
    yield f"{_text(row['window_start'])}, {_what(row)}, {row['cause']}: {old} became {new}, by usage {rows}"


def _straggler(row: Document) -> Iterator[str]:
    yield (
        f"usage {row['usage_lsn']}, {_what(row)}: {_text(row['late_seconds'])} s after the end of the minute "
        f"{_text(row['window_start'])}, {row['decision']}{_by(row)}: {_sum(row, row)}"
    )


def _by(row: Document) -> str:
    """Who decided about a straggler and why; or the deadline of one that waits."""
    if row["decision"] == Decision.HOLD:
        return f" until {_text(row['hold_until'])}" if row["hold_until"] else ""
    return f" by {row['decided_by']} ({row['reason']})" if row["decided_by"] else ""


def _usage(row: Document) -> Iterator[str]:
    corrected = f", corrects {', '.join(map(str, row['corrects_lsns']))}" if row["corrects_lsns"] else ""
    unbilled = "" if row["is_billed"] else ", not billed yet"
    yield (
        f"lsn {row['lsn']}, {row['account']} {row['request_id']}: {row['outcome']}, sign {row['sign']}, "
        f"{row['cause']}{corrected}, occurred {_text(row['event_time'])}{unbilled}"
    )
    for meter in row["meters"]:
        if row["cause"] == UsageCause.DECIDED:
            yield f"  {meter['meter']}: {row['dimensions']['decision']}{_by(row['dimensions'])}"
        elif meter["quantity"] is None:
            yield f"  {meter['meter']}: not reported"
        else:
            decision = f", straggler: {meter['decision']}" if meter["decision"] else ""
            yield f"  {meter['meter']}: {_product({**row, **meter})}{decision}"
    for member in row["members"]:
        unit = f"at {member['unit_price']} {member['currency']}" if member["unit_price"] else "without a price"
        value = member["member"] if member["value"] is None else member["value"]
        verb = "is added to" if row["sign"] > 0 else "is removed from"
        yield f"  {member['meter']}: {value} {verb} the {member['period']} from {member['first_day']}, {unit}"


def _outcome(row: Document) -> Iterator[str]:
    parts = ", ".join(
        f"{name} lsn {row[f'{name}_lsn']}" for name in ("request", "completion") if row[f"{name}_lsn"] is not None
    )
    yield f"{row['request_id']}: {row['outcome']} of {parts}, a fact since {_text(row['received_at'])}"


def _report(row: Document) -> Iterator[str]:
    does = "bills" if row["bills"] else "bills nothing"
    reported = ", ".join(f"{_text(quantity)} {column}" for column, quantity in row["quantities"].items())
    words = ", ".join(row[name] for name in ("status", "usage_source") if row[name])
    yield (
        f"{row['request_id']}: event {row['id']}, lsn {row['lsn']}{f', {words}' if words else ''}, occurred "
        f"{_text(row['event_time'])}, {does}: it reports {reported or 'no quantity'}"
    )
    yield f"  {row['explanation']}"


def _reversal(row: Document) -> Iterator[str]:
    yield f"{row['explanation']} ({row['source']}, lsn {row['lsn']}, received {_text(row['received_at'])})"


def _content(row: Document) -> Iterator[str]:
    yield f"{row['explanation']} (usage {row['lsn']})"


def _record(row: Document) -> Iterator[str]:
    why = "".join(f", {row[name]}" for name in ("reason", "violation") if row[name])
    first = f" of lsn {row['first_lsn']}" if row["first_lsn"] else ""
    yield f"{_place(row)}, received {_text(row['received_at'])}: {row['disposition']}{first}{why}"
    value = row.get("value_base64") or row["value"] or ""
    more = len(value) - SHOWN_CHARACTERS
    yield f"  {value[:SHOWN_CHARACTERS]}" + (f"… ({more} more characters)" if more > 0 else "")


def _place(row: Document) -> str:
    element = f", element {row['element']}" if row.get("element") else ""
    return f"{row['topic']}[{row['partition']}] offset {row['offset']}{element}, lsn {row['lsn']}"


def _what(row: Document) -> str:
    return f"{model_words(row['model'] or 'no model')} {row['meter']}"


def _is_by_total(row: Document) -> bool:
    """Whether tiers or packages price it: no minute has a part of their amount."""
    return row["unit_price"] is None and row["price_version"] is not None and row["price_version"] > BILLED_AS_PART


def _has_no_amount(row: Document) -> bool:
    """Whether it is unpriced, or priced by the month's total: either is not 0."""
    return row["price_version"] is None or _is_by_total(row)


def _product(row: Document) -> str:
    if row["price_version"] is None:
        return f"{_text(row['quantity'])} without a price"
    if row["price_version"] == BILLED_AS_PART:
        return f"{_text(row['quantity'])} billed by a meter within it, which has a price of its own"
    if row["price_version"] == BILLED_IN_WHOLE:
        return f"{_text(row['quantity'])} billed by the meter that it is within; it has no price of its own"
    if _is_by_total(row):
        return f"{_text(row['quantity'])} priced by the month's total (price version {row['price_version']})"
    product = f"{_text(row['quantity'])} x {_text(row['unit_price'])} = {_sum(row, row, amount_only=True)}"
    return f"{product} (price version {row['price_version']})"


def _contributed(of: Document, row: Document) -> str:
    return _text(of["quantity"]) if _has_no_amount(row) else _sum(of, row)


def _sum(of: Document, row: Document, *, amount_only: bool = False) -> str:
    amount = f"{_text(of['amount'])} {row['currency'] or ''}".strip()
    return amount if amount_only else f"{_text(of['quantity'])} for {amount}"


def _text(value: Any) -> str:
    return "unknown" if value is None else text_of(value)
