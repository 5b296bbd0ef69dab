"""What became of a request or an event, from the bill down to the records as they were received."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import streamlit as st

from dashboard.exact import plain
from dashboard.fates import CAUSES, Fate, fates
from dashboard.freshness import Freshness, State
from dashboard.marks import DECISIONS, WINDOWS
from dashboard.meter_columns import with_meters
from dashboard.panel import ask_every, current_time, head
from dashboard.queries.event import DEFAULT_DAYS, SHOWN_CHARACTERS, Event, read_event
from dashboard.queries.meters import in_order
from dashboard.table import Link, Row, Value, show_table
from dashboard.wording import escaped, length, literal, minute, price_text, several
from metering.digits import EXACT
from metering.limits import MAX_NAME_BYTES
from metering.price_models import model_words

SHARED_FOR_SECONDS = 8.0
MAX_DAYS = 3_650
HEIGHT = 260
Document = Mapping[str, Any]


def show() -> None:
    """Draw the page."""
    st.title("One event")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input("Request id or event id", key="id", width=460, bind="query-params")
        days = st.number_input("Days back", 1, MAX_DAYS, DEFAULT_DAYS, key="days", width=200, bind="query-params")
    if not text:
        st.info("Enter the id of a request or of an event to see what became of it.", icon=":material/search:")
    elif (problem := unusable(text)) is not None:
        st.warning(problem, icon=":material/search_off:")
    else:
        _explained(text, int(days))


def event_link(text: str, received_at: datetime) -> Link:
    """To this page, looking as far back as this was received."""
    age_days = (current_time() - received_at).days + 1
    further = f"&days={age_days}" if age_days > DEFAULT_DAYS else ""
    return Link(f"event?id={quote(text, safe='')}{further}")


def unusable(text: str) -> str | None:
    """Why nothing can have this id, as a sentence; None: something can."""
    is_not_received = "So it was never received as an id; `weir dead-letters` lists what was rejected."
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return f"This text cannot be written in UTF-8. {is_not_received}"
    if size > MAX_NAME_BYTES:
        return f"An id has at most {MAX_NAME_BYTES} bytes, and this has {size:,}. {is_not_received}"
    if not text.strip():
        return "An id is more than spaces: enter that of a request or of an event."
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text):
        return f"An id has no control characters, and this has some. {is_not_received}"
    return None


def _explained(text: str, days: int) -> None:
    reading = ask_every(SHARED_FOR_SECONDS, read_event, text, days)
    found = head(f"What became of {_short(text)}", reading, lambda event: _freshness(event, text, days))
    if found is None or found.document is None:
        return
    document = found.document
    for fate in fates(document, text):
        _say(fate)
    for difference in document["differences"]:
        st.error(literal(difference), icon=":material/error:")
    _table("On the bill", "bill", list(_on_the_bill(document)))
    _table("Price versions", "prices", [_price(row) for row in document["prices"]])
    _table("Windows", "windows", [_window(row) for row in document["windows"]])
    _table("Corrections of these windows by it", "corrections", [_correction(row) for row in document["corrections"]])
    _table("Stragglers", "stragglers", [_straggler(row) for row in document["stragglers"]])
    _table("Rows of usage", "usage", _usage(document["usage"]))
    _table("Reports of the request", "reports", [_report(row) for row in document["reports"]])
    _records(document["records"])
    if document["cut"]:
        there_are = ", ".join(f"{name} {count:,}" for name, count in document["cut"].items())
        st.caption(f"Not all is shown ({there_are}): `weir explain ID --limit …` lists more.")


def _say(fate: Fate) -> None:
    sentence = literal(fate.sentence)
    if not fate.is_settled:
        st.warning(sentence, icon=":material/pending:")
    elif fate.is_billed:
        st.success(sentence, icon=":material/check_circle:")
    else:
        st.info(sentence, icon=":material/money_off:")


def _freshness(found: Event, text: str, days: int) -> Freshness:
    if found.document is None:
        spaces = " It begins or ends with a space: leave that out." if text != text.strip() else ""
        return Freshness(
            State.NEVER_HAD_DATA,
            f"No request or event of this id that may be shown here was received in the last {several(days, 'day')}."
            f"{spaces} Look further back, or see `weir dead-letters` for records that could not be read.",
        )
    rows = several(len(found.document["usage"]), "row")
    records = several(len(found.document["records"]), "record")
    verdict = "it adds up" if found.document["adds_up"] else "it does not add up"
    return Freshness(State.LIVE, f"{records} received, {rows} of usage, and {verdict}.")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"


def _table(title: str, key: str, rows: Sequence[Row]) -> None:
    if rows:
        st.markdown(f"##### {title}")
        show_table(rows, f"event-{key}", height=HEIGHT)


def _on_the_bill(document: Document) -> Iterator[Row]:
    """Per window, meter and price version: quantity x unit price = amount, of this event alone."""
    for window in document["windows"]:
        for version in window["price_versions"]:
            mine = version["contribution"]
            if mine["quantity"]:
                yield {
                    "account": window["account"],
                    "window start (UTC)": minute(window["window_start"]),
                    "model": window["model"] or "unknown",
                    "meter": window["meter"],
                    "quantity": plain(mine["quantity"]),
                    "× unit price": version["unit_price"],
                    "= amount": None if version["unit_price"] is None else mine["amount"],
                    "currency": window["currency"] or "none",
                    "price version": price_text(version["price_version"]),
                }


def _price(price: Document) -> Row:
    """A version, and who made it the price."""
    return {
        "price version": _number(price["price_version"]),
        "plan": price["plan"],
        "model": model_words(price["model"]),
        "meter": price["meter"],
        "unit price": "withdrawn" if price["deleted"] else price["terms"] or price["unit_price"],
        "currency": price["currency"],
        "from (UTC)": price["effective_from"],
        "changed by": price["changed_by"] or "not kept",
        "changed (UTC)": price["changed_at"],
    }


def _window(window: Document) -> Row:
    # What no price matched, or only the month's total prices, has no amount: it is not 0.
    has_amount = any(version["unit_price"] is not None for version in window["price_versions"])
    return {
        "account": window["account"],
        "window start (UTC)": minute(window["window_start"]),
        "state": WINDOWS[window["state"]],
        "model": window["model"] or "unknown",
        "meter": window["meter"],
        "quantity": plain(window["quantity"]),
        "quantity of this": plain(window["contribution"]["quantity"]),
        "amount": window["amount"] if has_amount else None,
        "amount of this": window["contribution"]["amount"] if has_amount else None,
        "currency": window["currency"] or "none",
    }


def _correction(correction: Document) -> Row:
    return {
        "corrected (UTC)": correction["corrected_at"],
        "window start (UTC)": minute(correction["window_start"]),
        "account": correction["account"],
        "model": correction["model"] or "unknown",
        "meter": correction["meter"],
        "cause": CAUSES[correction["cause"]],
        "quantity was": plain(correction["old_quantity"]),
        "quantity is": plain(correction["new_quantity"]),
        "amount was": correction["old_amount"],
        "amount is": correction["new_amount"],
        "currency": correction["currency"] or "none",
        "by usage": _lsns(correction["usage_lsns"]),
    }


def _straggler(straggler: Document) -> Row:
    return {
        "usage lsn": _number(straggler["usage_lsn"]),
        "meter": straggler["meter"],
        "window start (UTC)": minute(straggler["window_start"]),
        "late": length(timedelta(seconds=float(straggler["late_seconds"]))),
        "decision": DECISIONS[straggler["decision"]],
        "quantity": plain(straggler["quantity"]),
        "amount": straggler["amount"],
        "currency": straggler["currency"] or "no price",
        "waits until (UTC)": straggler["hold_until"],
        "decided by": straggler["decided_by"],
        "reason": straggler["reason"],
    }


def _usage(rows: Sequence[Document]) -> list[dict[str, Value]]:
    meters = in_order(meter["meter"] for row in rows for meter in row["meters"])
    return [_of_usage(row, meters) for row in rows]


def _of_usage(row: Document, meters: Sequence[str]) -> dict[str, Value]:
    quantities = {
        meter["meter"]: plain(EXACT.multiply(meter["quantity"], row["sign"]))
        for meter in row["meters"]
        if meter["quantity"] is not None
    }
    front: Row = {
        "usage lsn": _number(row["lsn"]),
        "cause": row["cause"],
        "outcome": row["outcome"],
        "sign": "−" if row["sign"] < 0 else "+",
        "corrects": _lsns(row["corrects_lsns"] or ()),
        "account": row["account"],
        "model": row["model"] or "unknown",
        "event time (UTC)": row["event_time"],
        "received (UTC)": row["received_at"],
        "day": None if row["day"] is None else row["day"].isoformat(),
        "billed": "yes" if row["is_billed"] else "not yet",
    }
    back: Row = {"request lsn": _number(row["request_lsn"]), "completion lsn": _number(row["completion_lsn"])}
    return with_meters(front, {meter: quantities.get(meter) for meter in meters}, back)


def _report(report: Document) -> Row:
    return {
        "event id": report["id"],
        "lsn": _number(report["lsn"]),
        "bills": "yes" if report["bills"] else "no",
        "why": report["explanation"],
        "status": report["status"],
        "usage source": report["usage_source"],
        "reported": ", ".join(f"{column} {plain(quantity)}" for column, quantity in report["quantities"].items()),
        "event time (UTC)": report["event_time"],
    }


def _number(number: int | None) -> str | None:
    """A number that identifies something: no sum, no separator of thousands."""
    return None if number is None else str(number)


def _lsns(lsns: Sequence[int]) -> str:
    return ", ".join(map(str, lsns))


def _records(records: Sequence[Document]) -> None:
    has_elements = any(record["element"] for record in records)
    _table("Records as received", "records", [_record(record, has_elements=has_elements) for record in records])
    if not records:
        return
    by_name = {f"lsn {record['lsn']}, {record['disposition']}": record for record in records}
    chosen = by_name[st.selectbox("Value of", list(by_name), width=260)]
    # Without a language it is shown as text, so a stranger's Markdown or HTML has no effect.
    st.code(escaped(chosen["value"]) or "(no value)", language=None, wrap_lines=True)
    if chosen["more_characters"]:
        st.caption(
            f"Only the first {SHOWN_CHARACTERS:,} characters; `weir explain … --format json` has the other "
            f"{chosen['more_characters']:,}."
        )


def _record(record: Document, *, has_elements: bool) -> Row:
    return {
        "topic": record["topic"],
        "partition": record["partition"],
        "offset": _number(record["offset"]),
        **({"element": record["element"]} if has_elements else {}),
        "lsn": _number(record["lsn"]),
        "received (UTC)": record["received_at"],
        "disposition": record["disposition"],
        "of lsn": _number(record["first_lsn"]),
        "reason": record["reason"],
        "violation": record["violation"],
        "account": record["account"],
        "type": record["type"],
        "event id": record["id"],
    }
