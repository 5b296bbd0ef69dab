"""Models: use, users, errors and percentiles of each in the last hour, beside the same hour last week."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import streamlit as st

from dashboard.encodings import by_mark
from dashboard.exact import plain
from dashboard.filters import choose_account
from dashboard.freshness import Freshness, State, freshness
from dashboard.model_columns import Roles, change, roles_of, share
from dashboard.panel import ask_every, head
from dashboard.queries.models import (
    ACCOUNT,
    HOUR,
    Hour,
    Measured,
    ModelHour,
    Models,
    ModelsFilter,
    read_models,
    read_view_names,
)
from dashboard.table import Value, show_table
from dashboard.wording import UNKNOWN, count, literal, moment, spaced, span
from metering.views import RANKS

REFRESH_SECONDS = 20
MAX_BARS = 12
BESIDE = "Below: the change since the same hour last week."
NOW, BEFORE = "● the last hour", "○ a week ago"
MARKS = {mark: mark for mark in (NOW, BEFORE)}
SHOWN_RANKS = ("p50", "p95", "p99")
COLORS = ["#4aa3d8", "#7b8b9a"]
EXAMPLE = """\
views:
  model_health:
    of: outcomes
    by: [model, account]
    measures:
      requests: count
      errors: {count: {where: {status: [error]}}}
      users: {distinct: user_id}
      latency_ms: {percentiles: latency_ms}
      tokens: {sum: output_tokens}
"""


def show() -> None:
    """Draw the page."""
    st.title("Models")
    names = ask_every(REFRESH_SECONDS, read_view_names).value or ()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        view = st.selectbox(
            "View",
            options=names,
            index=0 if names else None,
            placeholder="none by model",
            accept_new_options=True,
            key="view",
            width=260,
            bind="query-params",
        )
        account = choose_account()
    _live(ModelsFilter(view, account))


@st.fragment(run_every=REFRESH_SECONDS)
def _live(chosen: ModelsFilter) -> None:
    found = head("The last hour", ask_every(REFRESH_SECONDS / 2, read_models, chosen), _freshness)
    if found is None:
        return
    if found.view is None:
        _explain()
        return
    if found.hour is None:
        return
    hour, roles = found.hour, roles_of(found.view)
    if hour.is_too_much:
        st.info(
            "These outcomes have too many keys for a page. Choose an account, or declare a view by model alone.",
            icon=":material/filter_alt:",
        )
        return
    st.caption(_range(hour))
    if chosen.account and ACCOUNT not in found.view.by:
        st.info(
            "This view adds up all accounts, so its numbers are not those of the chosen account. A view by `account` "
            "has these.",
            icon=":material/groups:",
        )
    if not hour.models:
        st.info("No outcome in this hour, nor in the same hour last week.", icon=":material/search_off:")
        return
    _figures(hour, roles)
    models = sorted(hour.models, key=lambda model: (-_number(model.now, roles.requests), model.model or ""))
    left, right = st.columns(2)
    if roles.requests is not None:
        left.altair_chart(_requests(models[:MAX_BARS], roles.requests), alt="Requests by model, beside last week")
    if roles.percentiles:
        chart = _percentiles(models[:MAX_BARS], roles.percentiles[0])
        right.altair_chart(chart, alt="Percentiles by model, beside last week")
    currencies = sorted({currency for model in models for currency in model.amounts if currency is not None})
    show_table([_row(model, roles, currencies) for model in models], "models")
    st.caption("`weir view` and `GET /v1/views` show other windows and keys. Amounts are what was billed so far.")


def _freshness(found: Models) -> Freshness:
    if found.view is None:
        return Freshness(State.NEVER_HAD_DATA, _missing(found))
    return freshness(found.feed, found.newest, "outcomes")


def _missing(found: Models) -> str:
    if found.has_others:
        return "No view by model is open to you. One by model and account would be."
    if found.feed.reported_at is None:
        return "analytics has not run on this database yet. It runs once a view is declared."
    return "No view is measured yet: analytics waits for the first outcome."


def _explain() -> None:
    st.write("This page shows a view by `model`. In the file of `weir up --config`, or in the chart's values:")
    st.code(EXAMPLE, language="yaml")
    st.caption(
        "Any view by `model` works, with any measures. A view that also has `account` shows each account its own."
    )


def _range(hour: Hour) -> str:
    shorter = "" if hour.end - hour.start == HOUR else f" (measured for {span(hour.end - hour.start)})"
    compared = (
        "beside the same hour last week"
        if hour.is_compared
        else "with no comparison: the view was not measured a week ago"
    )
    return f"{moment(hour.start)} to {moment(hour.end)}{shorter}, {compared}."


def _figures(hour: Hour, roles: Roles) -> None:
    now, before = hour.total or {}, hour.total_before or {}
    columns = st.columns(4)
    requests, errors, users = (
        (None, None) if name is None else (now.get(name), before.get(name))
        for name in (roles.requests, roles.errors, roles.users)
    )
    columns[0].metric("Requests", _text(requests[0]), _delta(change(*requests)), delta_color="off", help=BESIDE)
    failed, failed_before = share(errors[0], requests[0]), share(errors[1], requests[1])
    points = None if failed is None or failed_before is None else failed - failed_before
    shown = UNKNOWN if failed is None else f"{failed:.2f} %"
    columns[1].metric("Errors", shown, _delta(points, "points"), delta_color="inverse", help=BESIDE)
    columns[2].metric("Users", _text(users[0]), _delta(change(*users)), delta_color="off", help=BESIDE)
    if roles.percentiles:
        name = roles.percentiles[0]
        slowest, slowest_before = ((found.get(name) or {}).get("p95") for found in (now, before))
        label = f"{literal(spaced(name))}, p95"
        delta = _delta(_float_change(slowest, slowest_before))
        columns[3].metric(label, _text(slowest), delta, delta_color="inverse", help=BESIDE)


def _delta(value: float | None, unit: str = "%") -> str | None:
    return None if value is None else f"{value:+,.1f} {unit}"


def _text(value: Any) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.1f}" if isinstance(value, float) else count(plain(value))


def _requests(models: Sequence[ModelHour], name: str) -> alt.Chart:
    # A bar's length is a float in the browser anyway.
    bars = [
        {"model": model.model or UNKNOWN, "when": when, "requests": _number(of, name)}
        for model in models
        for when, of in ((NOW, model.now), (BEFORE, model.before))
        if of is not None
    ]
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(bars))
        .mark_bar()
        .encode(
            y=_models(models),
            yOffset=alt.YOffset("when:N", sort=[NOW, BEFORE]),
            x=alt.X("requests:Q", title="Requests"),
            color=by_mark("when", MARKS, COLORS),
            tooltip=[
                alt.Tooltip("model:N", title="Model"),
                alt.Tooltip("when:N", title="When"),
                alt.Tooltip("requests:Q", title="Requests", format=","),
            ],
        )
        .properties(height=_height(models))
    )
    return chart


def _percentiles(models: Sequence[ModelHour], name: str) -> alt.LayerChart | alt.FacetChart:
    lines = [
        {"model": model.model or UNKNOWN, "when": when, **of[name]}
        for model in models
        for when, of in ((NOW, model.now), (BEFORE, model.before))
        if of is not None and of[name] is not None
    ]
    base = alt.Chart(alt.InlineData(lines)).encode(
        y=_models(models),
        yOffset=alt.YOffset("when:N", sort=[NOW, BEFORE]),
        color=by_mark("when", MARKS, COLORS),
        tooltip=[
            alt.Tooltip("model:N", title="Model"),
            alt.Tooltip("when:N", title="When"),
            *(alt.Tooltip(f"{rank}:Q", format=",.1f") for rank in RANKS),
        ],
    )
    title = f"{spaced(name)}: p50 to p99, mark at p95"
    ranges = base.mark_rule(strokeWidth=3).encode(x=alt.X("p50:Q", title=title), x2="p99:Q")
    marks = base.mark_point(filled=True, size=70).encode(x=alt.X("p95:Q", title=title))
    return alt.layer(ranges, marks).properties(height=_height(models))


def _models(models: Sequence[ModelHour]) -> alt.Y:
    return alt.Y("model:N", title=None, sort=[model.model or UNKNOWN for model in models])


def _height(models: Sequence[ModelHour]) -> int:
    return 60 + 38 * len(models)


def _number(measured: Measured | None, name: str | None) -> float:
    return 0.0 if measured is None or name is None else float(measured.get(name) or 0)


def _row(model: ModelHour, roles: Roles, currencies: Sequence[str]) -> dict[str, Value]:
    now, before = model.now or {}, model.before or {}
    row: dict[str, Value] = {"model": model.model or UNKNOWN}
    if roles.requests is not None:
        row["requests"] = now.get(roles.requests, 0)
        row["requests change (%)"] = change(now.get(roles.requests, 0), before.get(roles.requests))
    for name in roles.sums:
        row[spaced(name)] = None if now.get(name) is None else plain(now[name])
    row |= {f"amount ({currency})": model.amounts.get(currency) for currency in currencies}
    if roles.requests is not None and roles.errors is not None:
        row["errors (%)"] = share(now.get(roles.errors), now.get(roles.requests))
        row["errors last week (%)"] = share(before.get(roles.errors), before.get(roles.requests))
    if roles.users is not None:
        row["users"] = now.get(roles.users, 0)
        row["users change (%)"] = change(now.get(roles.users, 0), before.get(roles.users))
    for name in roles.percentiles:
        found, found_before = now.get(name) or {}, before.get(name) or {}
        row |= {f"{spaced(name)} {rank}": found.get(rank) for rank in SHOWN_RANKS}
        row[f"{spaced(name)} p95 change (%)"] = _float_change(found.get("p95"), found_before.get("p95"))
    return row


def _float_change(now: float | None, before: float | None) -> float | None:
    return None if now is None or not before else (now - before) / before * 100
