"""The panel of thresholds on the page Watch."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import streamlit as st

from dashboard.encodings import by_mark
from dashboard.freshness import Freshness, freshness
from dashboard.marks import BELOW, CROSSED, LIMIT_REACHED, RETRACTED, STEP_REACHED
from dashboard.panel import ask_every, head
from dashboard.queries.thresholds import MAX_LIMITS, MAX_ROWS, Nearness, ThresholdChange, Thresholds, read_thresholds
from dashboard.table import Value, show_table
from dashboard.wording import count, spaced
from metering.limits import period_words

REFRESH_SECONDS = 20
MAX_BARS = 12
NEAR_PERCENT = 80
EXAMPLE = """\
limits:
  - {plan: standard, meter: input_tokens, period: P1M, quantity: "20000000", steps: [50%, 80%],
     effective_from: 2026-01-01T00:00:00Z}
  - {account: acme, currency: EUR, period: P1M, amount: "500.00", steps: [90%],
     effective_from: 2026-01-01T00:00:00Z}
"""
_MARKS = {mark: mark for mark in (STEP_REACHED, BELOW)}
_COLORS = ["#e0a43a", "#4aa3d8"]


@st.fragment(run_every=REFRESH_SECONDS)
def show_thresholds(account: str | None) -> None:
    """Draw it, of one account or all."""
    found = head("Thresholds", ask_every(REFRESH_SECONDS / 2, read_thresholds, account), _freshness)
    if found is None:
        return
    if found.is_too_much:
        st.info(
            f"More than {MAX_LIMITS:,} limits are in force. Choose an account to see its limits.",
            icon=":material/filter_alt:",
        )
    elif not found.limits:
        st.write("No limit is in force. Limits are rows of the catalog; `weir catalog apply` stores them:")
        st.code(EXAMPLE, language="yaml")
    else:
        _nearest(found.limits)
    if found.changes:
        st.markdown("###### Crossed and retracted")
        show_table([_changed(change) for change in found.changes], "threshold-changes", height=240)
        if len(found.changes) == MAX_ROWS:
            st.caption(f"Only the latest {MAX_ROWS:,} are shown; `weir limits changes` lists all.")


def _freshness(found: Thresholds) -> Freshness:
    return freshness(found.feed, found.newest_usage, "usage")


def _nearest(limits: Sequence[Nearness]) -> None:
    marks = [mark_of(limit) for limit in limits]
    columns = st.columns(4)
    columns[0].metric("Limits in force", f"{len(limits):,}")
    columns[1].metric("Limit reached", f"{marks.count(LIMIT_REACHED):,}")
    columns[2].metric("Step reached", f"{marks.count(STEP_REACHED):,}")
    columns[3].metric(f"At {NEAR_PERCENT} % or more of the next", f"{sum(map(_is_near, limits)):,}")
    # Those that have a threshold before them: who is about to reach it, not who has passed all.
    approaching = [limit for limit in limits if limit.near_percent is not None and limit.near_percent < 100][:MAX_BARS]
    if approaching:
        st.altair_chart(_chart(approaching), alt="The limits that are nearest to their next threshold, in percent")
    show_table([_row(limit) for limit in limits[:MAX_ROWS]], "thresholds")
    st.caption(
        "Usage of the current day or month of each account's calendar, or of the last whole hours (UTC). `near` is the "
        "share of the next threshold, a step or the limit itself; of the highest one if all are reached. For a limit "
        "that recurs, it counts from the last multiple."
        + (
            " `and perhaps` is usage of unknown value: a day had more than 10,000 combinations of dimensions."
            * any(limit.other for limit in limits)
        )
        + (f" Only the nearest {MAX_ROWS:,} are shown; `weir limits status` lists all." * (len(limits) > MAX_ROWS))
    )


def mark_of(limit: Nearness) -> str:
    """Whether the limit, or a step, is reached."""
    if limit.limit is not None and limit.used >= limit.limit:
        return LIMIT_REACHED
    is_past_all = limit.threshold is not None and limit.used >= limit.threshold
    return STEP_REACHED if limit.crossed or is_past_all else BELOW


def _is_near(limit: Nearness) -> bool:
    return limit.near_percent is not None and NEAR_PERCENT <= limit.near_percent < 100


def _of(thing: Nearness | ThresholdChange) -> str:
    if thing.currency:
        return f"{thing.currency} of {spaced(thing.meter)}" if thing.meter else thing.currency
    of_model = f" of {thing.model}" if thing.model else ""
    of_value = f" of {thing.dimension} {thing.dimension_value}" if thing.dimension else ""
    return f"{spaced(thing.meter)}{of_model}{of_value}"


def _chart(limits: Sequence[Nearness]) -> alt.Chart:
    # A bar's length is a float in the browser anyway.
    bars = [
        {
            "limit": f"{limit.account}, {_of(limit)}, {period_words(limit.period)}",
            "percent": limit.near_percent,
            "state": mark_of(limit),
            "used": count(limit.used),
            "threshold": count(limit.threshold),
        }
        for limit in limits
    ]
    labels = alt.Axis(labelLimit=320, labelOverlap=False)
    rows = alt.Y("limit:N", title=None, sort=[str(bar["limit"]) for bar in bars], axis=labels)
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(bars))
        .mark_bar()
        .encode(
            y=rows,
            x=alt.X("percent:Q", title="Used of the next threshold (%)", scale=alt.Scale(domain=[0, 100])),
            color=by_mark("state", _MARKS, _COLORS),
            tooltip=[
                alt.Tooltip("limit:N", title="Limit"),
                alt.Tooltip("used:N", title="Used"),
                alt.Tooltip("threshold:N", title="Threshold"),
                alt.Tooltip("percent:Q", title="Percent", format=",.1f"),
                alt.Tooltip("state:N", title="State"),
            ],
        )
        .properties(height=60 + 28 * len(bars))
    )
    return chart


def _row(limit: Nearness) -> dict[str, Value]:
    return {
        "account": limit.account,
        "of": _of(limit),
        "period": period_words(limit.period),
        "since": limit.period_start,
        "state": mark_of(limit),
        "used": limit.used,
        "and perhaps": limit.other or None,
        "next threshold": limit.threshold,
        "near (%)": limit.near_percent,
        "limit": limit.limit,
        "crossed": ", ".join(map(count, limit.crossed)) or None,
    }


def _changed(change: ThresholdChange) -> dict[str, Value]:
    return {
        "changed (UTC)": change.changed_at,
        "account": change.account,
        "of": _of(change),
        "period": period_words(change.period),
        "since": None if change.first_day is None else change.first_day.isoformat(),
        "what": CROSSED if change.is_crossed else RETRACTED,
        "threshold": change.threshold,
        "used": change.used,
        "version": change.version,
    }
