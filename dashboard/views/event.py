"""One event: what became of a request or an event, from the bill down to the records as they were received."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import streamlit as st

from dashboard.exact import EXACT, plain
from dashboard.fates import CAUSES, Fate, fates
from dashboard.freshness import Freshness, State
from dashboard.marks import DECISIONS, WINDOWS
from dashboard.meter_columns import with_meters
from dashboard.panel import ask_every, current_time, head
from dashboard.queries.event import DEFAULT_DAYS, SHOWN_CHARACTERS, Event, read_event
from dashboard.queries.meters import in_order
from dashboard.table import Link, Row, Value, show_table
from dashboard.wording import escaped, length, literal, minute, price_text, several
from metering.limits import MAX_NAME_BYTES

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
        return f"This is no text that can be written in UTF-8. {is_not_received}"
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
    _table("Price versions", "prices", [_price(one) for one in document["prices"]])
    _table("Windows", "windows", [_window(one) for one in document["windows"]])
    _table("Corrections of these windows by it", "corrections", [_correction(one) for one in document["corrections"]])
    _table("Stragglers", "stragglers", [_straggler(one) for one in document["stragglers"]])
    _table("Rows of usage", "usage", _usage(document["usage"]))
    _table("Reports of the request", "reports", [_report(one) for one in document["reports"]])
    _records(document["records"])
    if document["cut"]:
        there_are = ", ".join(f"{name} {many:,}" for name, many in document["cut"].items())
        st.caption(f"Not all is shown ({there_are}): `weir explain ID --limit …` tells more.")


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
                    "= amount": mine["amount"] if version["price_version"] is not None else None,
                    "currency": window["currency"] or "none",
                    "price version": price_text(version["price_version"]),
                }


def _price(one: Document) -> Row:
    """A version, and who made it the price."""
    return {
        "price version": _number(one["price_version"]),
        "plan": one["plan"],
        "model": one["model"],
        "meter": one["meter"],
        "unit price": "withdrawn" if one["deleted"] else one["unit_price"],
        "currency": one["currency"],
        "from (UTC)": one["effective_from"],
        "changed by": one["changed_by"] or "not kept",
        "changed (UTC)": one["changed_at"],
    }


def _window(one: Document) -> Row:
    return {
        "account": one["account"],
        "window start (UTC)": minute(one["window_start"]),
        "state": WINDOWS[one["state"]],
        "model": one["model"] or "unknown",
        "meter": one["meter"],
        "quantity": plain(one["quantity"]),
        "of it this": plain(one["contribution"]["quantity"]),
        "amount": one["amount"],
        "of that this": one["contribution"]["amount"],
        "currency": one["currency"] or "none",
    }


def _correction(one: Document) -> Row:
    return {
        "corrected (UTC)": one["corrected_at"],
        "window start (UTC)": minute(one["window_start"]),
        "account": one["account"],
        "model": one["model"] or "unknown",
        "meter": one["meter"],
        "cause": CAUSES[one["cause"]],
        "quantity was": plain(one["old_quantity"]),
        "quantity is": plain(one["new_quantity"]),
        "amount was": one["old_amount"],
        "amount is": one["new_amount"],
        "currency": one["currency"] or "none",
        "by usage": _lsns(one["usage_lsns"]),
    }


def _straggler(one: Document) -> Row:
    return {
        "usage lsn": _number(one["usage_lsn"]),
        "meter": one["meter"],
        "window start (UTC)": minute(one["window_start"]),
        "late": length(timedelta(seconds=float(one["late_seconds"]))),
        "decision": DECISIONS[one["decision"]],
        "quantity": plain(one["quantity"]),
        "amount": one["amount"],
        "currency": one["currency"] or "no price",
        "waits until (UTC)": one["hold_until"],
        "decided by": one["decided_by"],
        "reason": one["reason"],
    }


def _usage(rows: Sequence[Document]) -> list[dict[str, Value]]:
    meters = in_order(one["meter"] for row in rows for one in row["meters"])
    return [_of_usage(row, meters) for row in rows]


def _of_usage(row: Document, meters: Sequence[str]) -> dict[str, Value]:
    quantities = {
        one["meter"]: plain(EXACT.multiply(one["quantity"], row["sign"]))
        for one in row["meters"]
        if one["quantity"] is not None
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


def _report(one: Document) -> Row:
    return {
        "event id": one["id"],
        "lsn": _number(one["lsn"]),
        "bills": "yes" if one["bills"] else "no",
        "why": one["explanation"],
        "status": one["status"],
        "usage source": one["usage_source"],
        "reported": ", ".join(f"{column} {plain(quantity)}" for column, quantity in one["quantities"].items()),
        "event time (UTC)": one["event_time"],
    }


def _number(number: int | None) -> str | None:
    """A number that is a name: nobody adds it up, or parts it at the thousands."""
    return None if number is None else str(number)


def _lsns(lsns: Sequence[int]) -> str:
    return ", ".join(map(str, lsns))


def _records(records: Sequence[Document]) -> None:
    has_elements = any(one["element"] for one in records)
    _table("Records as received", "records", [_record(one, has_elements=has_elements) for one in records])
    if not records:
        return
    by_name = {f"lsn {one['lsn']}, {one['disposition']}": one for one in records}
    chosen = by_name[st.selectbox("Value of", list(by_name), width=260)]
    # Without a language it is neither Markdown nor HTML, whatever a stranger sent.
    st.code(escaped(chosen["value"]) or "(no value)", language=None, wrap_lines=True)
    if chosen["more_characters"]:
        st.caption(
            f"Only the first {SHOWN_CHARACTERS:,} characters; `weir explain … --format json` has the other "
            f"{chosen['more_characters']:,}."
        )


def _record(one: Document, *, has_elements: bool) -> Row:
    return {
        "topic": one["topic"],
        "partition": one["partition"],
        "offset": _number(one["offset"]),
        **({"element": one["element"]} if has_elements else {}),
        "lsn": _number(one["lsn"]),
        "received (UTC)": one["received_at"],
        "disposition": one["disposition"],
        "of lsn": _number(one["first_lsn"]),
        "reason": one["reason"],
        "violation": one["violation"],
        "account": one["account"],
        "type": one["type"],
        "event id": one["id"],
    }
