"""Late usage: stragglers, corrections of closed windows, and the effect of another grace."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import altair as alt
import streamlit as st

from dashboard.fates import CAUSES
from dashboard.filters import choose, choose_account, choose_hours
from dashboard.freshness import Freshness, State, freshness
from dashboard.marks import DECISIONS
from dashboard.panel import ask, ask_every, head
from dashboard.queries.corrections import Correction, CorrectionFilter, Corrections, read_corrections
from dashboard.queries.lateness import DAYS, Lateness, read_lateness
from dashboard.queries.stragglers import MAX_ROWS, Straggler, StragglerFilter, Stragglers, read_stragglers
from dashboard.table import Value, show_table
from dashboard.views.event import event_link
from dashboard.wording import length, minute, rounded, span
from metering.vocabulary import Decision

REFRESH_SECONDS = 3
LATENESS_SECONDS = 10

_GRACES = tuple(
    timedelta(seconds=seconds)
    for seconds in (
        *(0, 10, 20, 30, 45, 60, 90, 120, 150, 180, 240, 300, 360, 420, 480, 540, 600, 900, 1_200, 1_800, 2_700),
        *(3_600, 5_400, 7_200, 10_800, 14_400, 21_600, 28_800, 43_200, 86_400, 172_800, 604_800, 2_678_400),
    )
)
_BOUNDS_SECONDS = (0, 1, 5, 15, 30, 60, 120, 180, 300, 600, 1_800, 3_600, 21_600, 86_400)


def show() -> None:
    """Draw the page."""
    st.title("Late and dropped")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        account = choose_account()
        hours = choose_hours((1, 6, 24, 168), 24)
        decision = choose(
            "Decision", "decision", {"any": "any", **{name: mark[2:] for name, mark in DECISIONS.items()}}
        )
    _stragglers(StragglerFilter(hours, account, decision if decision in DECISIONS else None))
    _corrections(CorrectionFilter(hours, account))
    _distribution(account)


@st.fragment(run_every=REFRESH_SECONDS)
def _stragglers(chosen: StragglerFilter) -> None:
    found = head("Stragglers: received after grace", ask(read_stragglers, chosen), _freshness)
    if found is None or found.newest_usage is None:
        return
    _decided(found)
    if not found.stragglers:
        st.success(f"No straggler in the last {_hours(chosen.hours)}.", icon=":material/check_circle:")
        return
    show_table([_row(straggler) for straggler in found.stragglers], "stragglers")
    if found.is_cut:
        st.caption(f"Only the latest {MAX_ROWS:,} are shown; `weir stragglers` lists all.")
    if any(straggler.decision == Decision.HOLD for straggler in found.stragglers):
        st.caption(
            "Held usage is not billed, and stays in this list until it is decided. `weir stragglers approve` bills "
            "it, `weir stragglers reject` does not; without a decision, its deadline decides."
        )


def _freshness(found: Stragglers | Corrections) -> Freshness:
    return freshness(found.feed, found.newest_usage, "usage")


def _decided(found: Stragglers) -> None:
    columns = st.columns(max(4, len(found.decided)))
    if not found.decided:
        columns[0].metric("Stragglers", "0")
    for column, part in zip(columns, found.decided, strict=False):
        money = "unpriced" if part.currency is None else rounded(part.amount, part.currency)
        column.metric(
            f"{DECISIONS[part.decision]}, {part.currency or 'no price'}",
            f"{part.usage_rows:,} {'event' if part.usage_rows == 1 else 'events'}",
            delta=money,
            delta_color="off",
            delta_arrow="off",
        )


def _row(straggler: Straggler) -> dict[str, Value]:
    return {
        "received (UTC)": straggler.received_at,
        "window (UTC)": minute(straggler.window_start),
        "late": length(timedelta(seconds=straggler.late_seconds)),
        "account": straggler.account,
        "model": straggler.model or "unknown",
        "meter": straggler.meter,
        "decision": DECISIONS[straggler.decision],
        "quantity": straggler.quantity,
        "amount": straggler.amount,
        "currency": straggler.currency or "no price",
        "request": straggler.request_id,
        "became": event_link(straggler.request_id, straggler.received_at),
        "usage lsn": straggler.usage_lsn,
        "waits until (UTC)": straggler.hold_until if straggler.decision == Decision.HOLD else None,
        "decided by": straggler.decided_by,
        "reason": straggler.reason,
    }


@st.fragment(run_every=REFRESH_SECONDS)
def _corrections(chosen: CorrectionFilter) -> None:
    found = head("Corrections of closed windows", ask(read_corrections, chosen), _freshness)
    if found is None or found.newest_usage is None:
        return
    if not found.corrections:
        st.success(f"No closed window changed in the last {_hours(chosen.hours)}.", icon=":material/check_circle:")
        return
    show_table([_corrected(correction) for correction in found.corrections], "corrections")
    if found.is_cut:
        st.caption(f"Only the latest {MAX_ROWS:,} are shown; `weir corrections` lists all.")


def _corrected(correction: Correction) -> dict[str, Value]:
    return {
        "corrected (UTC)": correction.corrected_at,
        "window (UTC)": minute(correction.window_start),
        "account": correction.account,
        "model": correction.model or "unknown",
        "meter": correction.meter,
        "cause": CAUSES[correction.cause],
        "quantity was": correction.old_quantity,
        "quantity is": correction.new_quantity,
        "amount was": correction.old_amount,
        "amount is": correction.new_amount,
        "currency": correction.currency or "no price",
    }


def _hours(hours: int) -> str:
    return span(timedelta(hours=hours))


@st.fragment(run_every=LATENESS_SECONDS)
def _distribution(account: str | None) -> None:
    reading = ask_every(LATENESS_SECONDS / 2, read_lateness, account)
    lateness = head(f"How late usage is, last {DAYS} days", reading, _lateness_freshness)
    if lateness is None or not lateness.arrivals:
        return
    left, right = st.columns([5, 4], gap="large")
    with left:
        st.altair_chart(_bars(lateness), alt="Usage rows by lateness")
    with right:
        _what_if(lateness)


def _lateness_freshness(lateness: Lateness) -> Freshness:
    found = freshness(lateness.feed, lateness.newest, "usage")
    if found.state is State.LIVE and lateness.files_read < lateness.files:
        share = lateness.files_read / lateness.files
        return Freshness(State.LIVE, f"Still reading: {share:.0%} of the usage table's files so far, the newest first.")
    return found


def _what_if(lateness: Lateness) -> None:
    configured = lateness.feed.grace
    grace = st.select_slider(
        "With a grace of …",
        options=[int(grace.total_seconds()) for grace in _GRACES],
        value=min(
            (int(grace.total_seconds()) for grace in _GRACES),
            key=lambda seconds: abs(seconds - (configured or timedelta(minutes=5)).total_seconds()),
        ),
        format_func=lambda seconds: span(timedelta(seconds=seconds)),
        key="grace",
        bind="query-params",
    )
    events, amounts = lateness.later_than(timedelta(seconds=grace))
    total = sum(arrival.usage_rows for arrival in lateness.arrivals)
    share = f"{events / total:.3%} of {total:,}" if total else "of none"
    st.metric("would have been stragglers", f"{events:,} events", delta=share, delta_color="off", delta_arrow="off")
    money = " and ".join(rounded(amount, currency) for currency, amount in sorted(amounts.items())) or "no money"
    st.metric("worth", money)
    if configured is not None:
        now_events, _ = lateness.later_than(configured)
        st.caption(
            f"With today's {span(configured)}: {now_events:,} events. A longer grace closes windows that much "
            "later; a shorter one turns late events into corrections or drops."
            + "".join(
                f" {meter} has its own grace of {span(own)}; here it is counted like all others."
                for meter, own in lateness.feed.meter_graces.items()
            )
        )


def _bars(lateness: Lateness) -> alt.Chart:
    counts = [0] * (len(_BOUNDS_SECONDS) + 1)
    for arrival in lateness.arrivals:
        counts[sum(arrival.late_seconds >= bound for bound in _BOUNDS_SECONDS)] += arrival.usage_rows
    words = [span(timedelta(seconds=bound)) for bound in _BOUNDS_SECONDS]
    names = ["on time", *(f"{low} to {high}" for low, high in pairwise(words)), f"{words[-1]} and more"]
    bars = [{"late": name, "usage_rows": rows} for name, rows in zip(names, counts, strict=True)]
    base = alt.Chart(alt.InlineData(bars)).encode(
        y=alt.Y("late:O", sort=None, title="After the window's end"),
        x=alt.X(
            "usage_rows:Q",
            scale=alt.Scale(type="symlog"),
            axis=alt.Axis(title="Usage rows (logarithmic)", grid=False, labels=False, ticks=False),
        ),
        tooltip=[alt.Tooltip("late:O", title="Late"), alt.Tooltip("usage_rows:Q", title="Usage rows", format=",")],
    )
    labels = base.mark_text(align="left", dx=4, color="#8090a0").encode(text=alt.Text("usage_rows:Q", format=","))
    return (base.mark_bar() + labels).properties(height=360)  # type: ignore[no-any-return]
