"""Audit: what was proved and when, what each audit examined and found, and what it corrected, in money."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import streamlit as st

from dashboard.exact import total
from dashboard.filters import choose_hours
from dashboard.freshness import Freshness, State
from dashboard.panel import ask, head
from dashboard.queries.audits import MAX_ROWS, Audit, Audits, Check, read_audits
from dashboard.table import Value, show_table
from dashboard.wording import literal, minute, rounded, several, span
from monitoring.alerts.audits import ANYTHING_HOURS

REFRESH_SECONDS = 5
HOW = "Run `weir audit`, or let the chart schedule it (`audit.runs`)."


def show() -> None:
    """Draw the page."""
    st.title("Audit")
    _audits(choose_hours((24, 168, 720, 8_760), 168))


@st.fragment(run_every=REFRESH_SECONDS)
def _audits(hours: int) -> None:
    found = head("Audits: what was proved", ask(read_audits, hours), _freshness)
    if found is None or found.last_started_at is None:
        return
    _figures(found)
    if not found.audits:
        st.info(f"No audit began in the last {span(timedelta(hours=hours))}. {HOW}", icon=":material/fact_check:")
        return
    currencies = _currencies(found.audits)
    show_table([_row(audit, currencies) for audit in found.audits], "audits")
    if found.is_cut:
        st.caption(f"Only the latest {MAX_ROWS:,} are shown; the table audits has all.")
    _opened(found)


def _freshness(found: Audits) -> Freshness:
    if found.last_started_at is None:
        return Freshness(State.NEVER_HAD_DATA, f"No audit has run yet. {HOW}")
    proved_at = found.anything_proved_at
    if proved_at is None:
        return Freshness(State.STALE, f"No audit has proved anything yet. {HOW}")
    sentence = f"The last audit that proved what it examined began {_ago(proved_at, found)}."
    if found.read_at - proved_at > timedelta(hours=ANYTHING_HOURS):
        return Freshness(State.STALE, f"{sentence} {HOW}")
    return Freshness(State.LIVE, sentence)


def _ago(instant: datetime | None, found: Audits) -> str:
    return "never" if instant is None else f"{span(found.read_at - instant)} ago"


def _figures(found: Audits) -> None:
    currencies = _currencies(found.audits)
    columns = st.columns(max(4, 3 + len(currencies)))
    columns[0].metric("Everything proved", _ago(found.everything_proved_at, found))
    columns[1].metric("Anything proved", _ago(found.anything_proved_at, found))
    columns[2].metric("Corrected", several(sum(sum(audit.corrected.values()) for audit in found.audits), "row"))
    for column, currency in zip(columns[3:], currencies, strict=False):
        amount = total(audit.money.get(currency, 0) for audit in found.audits)
        column.metric(f"Corrected, {currency}", rounded(amount, currency))


def _currencies(audits: Iterable[Audit]) -> list[str]:
    return sorted({currency for audit in audits for currency in audit.money})


def _row(audit: Audit, currencies: list[str]) -> dict[str, Value]:
    return {
        "audit": audit.audit_id,
        "began (UTC)": audit.started_at,
        "took": None if audit.finished_at is None else audit.finished_at - audit.started_at,
        "of": _of(audit),
        "result": _result(audit),
        "unexpected": sum(audit.unexpected.values()),
        "rows corrected": sum(audit.corrected.values()),
        **{f"changed, {currency}": audit.money.get(currency) for currency in currencies},
        "version": audit.version,
    }


def _of(audit: Audit) -> str:
    if audit.is_of_everything:
        return "everything"
    since = [] if audit.received_from is None else [f"received from {minute(audit.received_from)}"]
    until = [] if audit.occurred_to is None else [f"occurred before {minute(audit.occurred_to)}"]
    return ", ".join([*since, *until])


def _result(audit: Audit) -> str:
    if audit.is_proved:
        return "✓ proved"
    if audit.failure is not None:
        return "✕ failed"
    if audit.unexpected:
        return "✕ found faults"
    return "◔ not finished"


def _opened(found: Audits) -> None:
    ids = [str(audit.audit_id) for audit in found.audits]
    chosen = st.selectbox("Open an audit", ids, key="audit", width=260, accept_new_options=True, bind="query-params")
    audit = next((audit for audit in found.audits if str(audit.audit_id) == chosen), None)
    if audit is None:
        st.info("This audit is not among those above: choose a longer time.", icon=":material/search_off:")
        return
    st.markdown(f"##### {_result(audit)}: {_of(audit)}")
    if audit.failure is not None:
        st.error(literal(audit.failure), icon=":material/error:")
    elif audit.finished_at is None:
        st.caption("It is still running, or was ended early; this is what it had found.")
    if audit.checks:
        show_table([_check(check, audit) for check in audit.checks], f"audit-{audit.audit_id}-checks")
    if audit.corrected:
        currencies = _currencies([audit])
        show_table([_cause(audit, cause, currencies) for cause in audit.corrected], f"audit-{audit.audit_id}-corrected")
    elif audit.finished_at is not None:
        st.success("Nothing had to be corrected.", icon=":material/check_circle:")


def _check(check: Check, audit: Audit) -> dict[str, Value]:
    return {
        "check": check.check,
        "result": "✕" if not check.holds else "✓" if check.examined else "◌ no rows",
        "examined": check.examined,
        "found": check.found,
        "unexpected": audit.unexpected.get(check.check, 0),
        "corrected": check.corrected,
        "detail": check.says,
    }


def _cause(audit: Audit, cause: str, currencies: list[str]) -> dict[str, Value]:
    amounts = audit.changed.get(cause, {})
    return {
        "cause": cause,
        "rows": audit.corrected[cause],
        **{f"changed, {currency}": amounts.get(currency) for currency in currencies},
    }
