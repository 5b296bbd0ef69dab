"""The conservation equation as one bar: received = accepted + rejected + duplicates + conflicts; and the residual."""

from __future__ import annotations

from typing import Any

import altair as alt
import streamlit as st

from dashboard.encodings import by_mark
from dashboard.freshness import Freshness, State, freshness
from dashboard.panel import ask_every, head
from dashboard.queries.conservation import DAYS, Conservation, read_conservation
from dashboard.wording import count
from metering.vocabulary import Disposition

REFRESH_SECONDS = 5
MAX_REASONS = 6

# Shape and word, besides the colour.
_MARKS: dict[str, str] = {
    Disposition.ACCEPTED: "✓ accepted",
    Disposition.REJECTED: "✕ rejected",
    Disposition.DUPLICATE: "≡ duplicate",
    Disposition.CONFLICT: "≠ conflict",
}
COLORS = ["#12906b", "#d98200", "#5a6b7b", "#b8548c"]


@st.fragment(run_every=REFRESH_SECONDS)
def show_conservation() -> None:
    """Draw the bar; it refreshes itself."""
    equation = head("Every record accounted for", ask_every(REFRESH_SECONDS / 2, read_conservation), _freshness)
    if equation is None or equation.by_disposition is None:
        return
    st.altair_chart(_bar(equation), alt="Records received, by disposition")
    for column, (disposition, mark) in zip(st.columns([4, 4, 4, 4, 4]), _headings(equation), strict=True):
        column.metric(disposition, mark)
    _explain(equation)


def _freshness(equation: Conservation) -> Freshness:
    found = freshness(equation.feed, equation.newest, "records")
    if found.state is State.LIVE and equation.files_read < equation.files:
        share = equation.files_read / equation.files
        return Freshness(State.LIVE, f"Still counting: {share:.0%} of the journal's files so far, the newest first.")
    return found


def _headings(equation: Conservation) -> list[tuple[str, str]]:
    by_disposition = equation.by_disposition or {}
    signs = ["=", "+", "+", "+"]
    parts = [(f"{sign} {_MARKS[kind]}", count(by_disposition[kind])) for sign, kind in zip(signs, _MARKS, strict=True)]
    return [("received", count(equation.received)), *parts]


def _explain(equation: Conservation) -> None:
    reasons = list(equation.by_reason.items())
    if reasons:
        listed = ", ".join(f"{reason} {number:,}" for reason, number in reasons[:MAX_REASONS])
        more = f" and {len(reasons) - MAX_REASONS} more reasons" if len(reasons) > MAX_REASONS else ""
        st.caption(f"Rejected for: {listed}{more}. `weir dead-letters` lists them as they were received.")
    if equation.redriven:
        st.caption(f"{count(equation.redriven)} of the accepted records are redriven dead letters.")
    if equation.residual == 0:
        st.markdown(":green-badge[:material/check: residual 0] :small[Every record ever read has exactly one row.]")
    elif equation.residual is not None:
        st.error(
            f"Residual {equation.residual:,}: records read and rows written differ. `weir journal --summary` says "
            "in which partition.",
            icon=":material/error:",
        )
    st.caption(f"Counts are of the journal's last {DAYS} days; the residual is of all of it.")


def _bar(equation: Conservation) -> alt.Chart:
    received = max(1, equation.received)
    parts: list[dict[str, Any]] = [
        {"part": _MARKS[kind], "records": number, "share": number / received, "order": order}
        for order, (kind, number) in enumerate((equation.by_disposition or {}).items())
    ]
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(parts))
        .mark_bar(height=26)
        .encode(
            x=alt.X("records:Q", stack="zero", axis=None, scale=alt.Scale(domain=[0, received], nice=False)),
            color=by_mark("part", _MARKS, COLORS),
            order="order:Q",
            tooltip=[
                alt.Tooltip("part:N", title="Disposition"),
                alt.Tooltip("records:Q", title="Records", format=","),
                alt.Tooltip("share:Q", title="Share", format=".3%"),
            ],
        )
        .properties(height=75)
    )
    return chart
