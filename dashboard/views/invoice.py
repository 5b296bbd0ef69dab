"""One invoice: its states and lines; and for a line all that was issued for its key, its price and its records."""

from __future__ import annotations

from decimal import Decimal
from urllib.parse import urlencode

import streamlit as st

from dashboard.exact import plain, total
from dashboard.freshness import Freshness, State
from dashboard.marks import INVOICES
from dashboard.panel import ask, head
from dashboard.queries.bills import Line
from dashboard.queries.invoices import Invoice, Issued, KeyHistory, read_invoice, read_key_history
from dashboard.table import Value, show_table
from dashboard.views.bill_line import line_name, show_line
from dashboard.views.bills import shown_months
from dashboard.wording import count, instant, literal, money, price_text, several, spaced
from metering.invoice_chain import Event
from metering.invoices import FEES, WRITE_OFF, Key
from metering.invoices import Line as InvoiceLine
from metering.invoices import State as InvoiceState
from metering.plan_terms import FEE_WORDS, Fee
from metering.price_models import model_words


def show_invoice(invoice: str) -> None:
    """Draw it, or that there is none."""
    for found in head(invoice, ask(read_invoice, invoice), _freshness) or ():
        _show(found)


def _show(found: Invoice) -> None:
    header = found.header
    st.markdown(
        f"{INVOICES[found.state]} · {spaced(header.kind)} to {literal(header.account)} for {header.period:%B %Y}: "
        f"**{money(header.total, header.money.currency)}**. {_relations(found)}"
    )
    st.caption(
        f"The month of the account is {instant(header.period_start)} to {instant(header.period_end)} UTC "
        f"({literal(header.timezone)}). Amounts have {header.money.minor_unit} decimals, rounded "
        f"{header.money.rounding}; rounding left {money(header.residual)} over. Audit {header.audit_id} proved the "
        f"usage: the rows of the table `usage` before lsn {header.usage_position:,}."
    )
    show_table([_event(event) for event in found.events], f"{header.invoice}-states")
    st.markdown("##### Lines")
    show_table([_line(line, found) for line in found.lines], f"{header.invoice}-lines")
    _opened(found)


def _freshness(found: tuple[Invoice, ...]) -> Freshness:
    if not found:
        return Freshness(State.NEVER_HAD_DATA, "There is no such invoice; see the list above.")
    return Freshness(State.LIVE, "As issued. `weir invoices verify` recomputes its hashes.")


def _relations(found: Invoice) -> str:
    correcting = sorted({line.corrects_invoice for line in found.lines if line.corrects_invoice is not None})
    corrected = sorted({later for invoices in found.corrected_by.values() for later in invoices})
    is_voided = found.state == InvoiceState.VOIDED
    sentences = [
        "Its lines do not count." if is_voided else "",
        f"It replaces {literal(found.header.replaces)}." if found.header.replaces else "",
        f"{literal(found.replaced_by)} replaces it." if found.replaced_by else "",
        f"It {'corrected' if is_voided else 'corrects'} {literal(', '.join(correcting))}." if correcting else "",
        f"{literal(', '.join(corrected))} corrects lines of it." if corrected else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _event(event: Event) -> dict[str, Value]:
    return {
        "state": INVOICES[event.state],
        "at (UTC)": event.at,
        "by": event.made_by,
        "left open": ", ".join(event.allowed) or None,
        "reason": event.reason,
        "hash": event.hash,
    }


def _line(line: InvoiceLine, found: Invoice) -> dict[str, Value]:
    key = line.key
    what, is_fee = _no_usage(key), key.kind in FEES
    unit = "day" if is_fee else None
    return {
        "line": line.line,
        "class": line.charge_class or "",
        "month": f"{key.original_period:%Y-%m}",
        "model": what or model_words(key.model or "unknown"),
        "meter": key.meter,
        "price version": None if what else price_text(key.price_version),
        "tier": f"plan {key.tier}" if is_fee else key.tier,
        "quantity": plain(line.quantity),
        "unit": unit if key.meter is None else spaced(found.meters.unit(key.meter)),
        "unit price": line.unit_price,
        "exact amount": line.exact_amount,
        "amount": line.amount,
        "corrects": None if line.corrects_invoice is None else f"{line.corrects_invoice}, line {line.corrects_line}",
        "corrected by": ", ".join(found.corrected_by.get(line.line, ())) or None,
    }


def _no_usage(key: Key) -> str | None:
    """What a line without a model is; None: it is of usage."""
    if key.kind == WRITE_OFF:
        return "written off"
    return FEE_WORDS[Fee(key.kind)] if key.kind in FEES else None


def _opened(found: Invoice) -> None:
    by_name = {_name(line): line for line in found.lines}
    opened = st.selectbox(
        "Open a line",
        list(by_name),
        index=None,
        placeholder="Choose a line to see its corrections, its price and its records",
        key="line",
        bind="query-params",
    )
    if opened is None:
        return
    header = found.header
    reading = ask(read_key_history, header.account, header.money.currency, by_name[opened].key)
    history = head(f"Issued for {key_name(by_name[opened].key)}", reading, _history_freshness)
    if history is None:
        return
    show_table([_issued(issued) for issued in history.issued], "invoice-key")
    st.markdown(_sum(history, header.money.currency))
    if history.now is not None:
        _link(history.now, by_name[opened].key)
        show_line(history.now)


def key_name(key: Key) -> str:
    """What all lines of a key are about."""
    if (what := _no_usage(key)) is not None:
        plan = f"plan {key.tier} · " if key.kind in FEES else ""
        return f"{key.original_period:%Y-%m} · {plan}{what}"
    price = price_text(key.price_version)
    return " · ".join(
        part
        for part in (
            f"{key.original_period:%Y-%m}",
            model_words(key.model or "unknown model"),
            key.meter,
            f"price {price}" if price.startswith("lsn") else price,
            key.tier,
        )
        if part
    )


def _name(line: InvoiceLine) -> str:
    return f"{line.line} · {key_name(line.key)}"


def _history_freshness(history: KeyHistory) -> Freshness:
    invoices = {issued.invoice for issued in history.issued}
    counted = f"{several(len(history.issued), 'line')} of {several(len(invoices), 'invoice')}"
    return Freshness(State.LIVE, f"{counted}, in the order of issue.")


def _issued(issued: Issued) -> dict[str, Value]:
    line = issued.line
    return {
        "invoice": issued.invoice,
        "state": INVOICES[issued.state],
        "line": line.line,
        "class": line.charge_class or "",
        "quantity": plain(line.quantity),
        "exact amount": line.exact_amount,
        "amount": line.amount,
        "residual": line.residual,
        "corrects": None if line.corrects_invoice is None else f"{line.corrects_invoice}, line {line.corrects_line}",
    }


def _sum(history: KeyHistory, currency: str) -> str:
    counted = [issued.line for issued in history.issued if issued.state != InvoiceState.VOIDED]
    amount: Decimal = total(line.amount for line in counted)
    sentence = f"They sum to {money(amount, currency)}; lines of voided invoices do not count."
    if any(line.key.kind == WRITE_OFF for line in counted):
        return sentence
    if history.now is None:
        is_fee = any(issued.line.key.kind in FEES for issued in history.issued)
        return f"{sentence} {'The plan does not cost that' if is_fee else 'There is no usage of it'} any more."
    exact = money(history.now.amount, currency)
    now = f"Usage is now {count(history.now.quantity)} at {exact}"
    if history.now.is_fee:
        now = f"It is now {exact} for {several(history.now.quantity, 'day')}"
    issued = (total(line.quantity for line in counted), total(line.exact_amount or Decimal() for line in counted))
    is_same = issued == (history.now.quantity, history.now.amount or Decimal())
    return f"{sentence} {now}: {'as issued' if is_same else 'the next close corrects it'}."


def _link(line: Line, key: Key) -> None:
    if key.original_period in shown_months():
        query = {"account": line.account, "month": f"{key.original_period:%Y-%m}", "line": line_name(line)}
        st.markdown(f"[Open it on the page Bills](bills?{urlencode(query)})")
