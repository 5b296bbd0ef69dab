"""Invoices: what was issued, to whom, and what corrects what; one opens to its lines, and a line to its records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import streamlit as st

from dashboard.filters import choose, choose_account
from dashboard.freshness import Freshness, State
from dashboard.marks import INVOICES
from dashboard.panel import ask, head
from dashboard.queries.invoices import InvoiceFilter, Invoices, Listed, Sum, read_invoice_page, read_invoices
from dashboard.table import Value, show_table
from dashboard.views.bills import shown_months
from dashboard.views.invoice import show_invoice
from dashboard.wording import rounded, several, spaced, span
from metering.invoices import State as InvoiceState

MAX_CURRENCIES = 4
ANY = "any"


def show() -> None:
    """Draw the page."""
    st.title("Invoices")
    months = {f"{month:%Y-%m}": f"{month:%Y-%m}" for month in shown_months()}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        account = choose_account()
        chosen = choose("Month", "month", {ANY: ANY, **months})
    invoice_filter = InvoiceFilter(account, None if chosen == ANY else date.fromisoformat(f"{chosen}-01"))
    found = head("Issued", ask(read_invoices, invoice_filter), _freshness)
    if found is None or found.last_issued_at is None:
        return
    if not found.sums:
        st.info("No invoice of this account and month. Choose another.", icon=":material/search_off:")
        return
    _figures(found.sums)
    _table(invoice_filter, found.pages)


def _table(chosen: InvoiceFilter, pages: int) -> None:
    """A page of the list, and the invoice that is opened."""
    table = st.container()
    page = st.pagination(pages, key="page", bind="query-params") if pages > 1 else 1
    listed = ask(read_invoice_page, chosen, page).value or ()
    with table:
        show_table([_row(invoice) for invoice in listed], "invoices")
    opened = st.selectbox(
        "Open an invoice",
        [invoice.invoice for invoice in listed],
        index=None,
        placeholder="Choose an invoice to see its lines, its states and what corrects it",
        accept_new_options=True,
        key="invoice",
        bind="query-params",
    )
    if opened:
        show_invoice(opened)


def _freshness(found: Invoices) -> Freshness:
    if found.last_issued_at is None:
        return Freshness(State.NEVER_HAD_DATA, "No invoice was issued yet: `weir close` issues those of a month.")
    ago = span(found.read_at - found.last_issued_at)
    return Freshness(State.LIVE, f"The last one was issued {ago} ago. An invoice never changes.")


def _figures(sums: Sequence[Sum]) -> None:
    """What was issued by currency, the largest first, without voided invoices; and how many these are."""
    issued = [part for part in sums if part.state == InvoiceState.ISSUED]
    voided = sum(part.invoices for part in sums if part.state == InvoiceState.VOIDED)
    shown = sorted(issued, key=lambda part: -part.total)[:MAX_CURRENCIES]
    figures = [(f"{part.currency}, issued", rounded(part.total), several(part.invoices, "invoice")) for part in shown]
    figures.append(("Voided", f"{voided:,}", ""))
    for column, (label, value, note) in zip(st.columns(len(figures)), figures, strict=True):
        column.metric(label, value, delta=note or None, delta_color="off", delta_arrow="off")


def _row(invoice: Listed) -> dict[str, Value]:
    return {
        "invoice": invoice.invoice,
        "account": invoice.account,
        "month": f"{invoice.period:%Y-%m}",
        "kind": spaced(invoice.kind),
        "total": invoice.total,
        "currency": invoice.currency,
        "state": INVOICES[invoice.state],
        "lines": invoice.lines,
        "corrections": invoice.correction_lines,
        "corrected by": invoice.corrected_by,
        "replaces": invoice.replaces,
        "issued (UTC)": invoice.issued_at,
        "hash": invoice.hash,
    }
