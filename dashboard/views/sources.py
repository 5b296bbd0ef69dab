"""Sources: last seen, silent for how long, missing numbers; and event types without a contract."""

from __future__ import annotations

import streamlit as st

from dashboard.filters import choose
from dashboard.freshness import freshness
from dashboard.panel import ask, ask_every, head
from dashboard.queries.sources import MAX_RANGES, MAX_ROWS, Source, Sources, read_sources
from dashboard.queries.unknown_types import UnknownType, read_unknown_types
from dashboard.table import Value, show_table
from dashboard.wording import count, span
from monitoring.metrics import MAX_NEW_SOURCES

REFRESH_SECONDS = 3
TYPES_SECONDS = 15


def show() -> None:
    """Draw the page."""
    st.title("Sources")
    which = choose(
        "Show", "which", {"latest": "latest epoch of each", "faults": "silent or missing", "all": "every epoch"}
    )
    _sources(which)
    _unknown_types()


@st.fragment(run_every=REFRESH_SECONDS)
def _sources(which: str) -> None:
    found = head("Sources", ask(read_sources), lambda sources: freshness(sources.feed, sources.newest, "events"))
    if found is None or not found.sources:
        return
    _figures(found)
    if found.unlisted:
        st.warning(
            f"{count(found.unlisted)} events came from sources that are not listed: more than {MAX_NEW_SOURCES:,} new "
            "ones came within an hour. Their events are metered and billed like all others.",
            icon=":material/flood:",
        )
    latest = [source for source in found.sources if source.is_latest_epoch]
    shown = {
        "latest": latest,
        "faults": [source for source in latest if _state(source, found) not in ("✓ heard", "✓ complete", "● retired")],
        "all": list(found.sources),
    }[which]
    if not shown:
        st.success("No source is silent, and no sequence number is missing.", icon=":material/check_circle:")
        return
    show_table([_row(source, found) for source in shown], "sources", height=560)
    if found.is_cut:
        st.caption(f"Only the {MAX_ROWS:,} last heard are shown.")


@st.fragment(run_every=TYPES_SECONDS)
def _unknown_types() -> None:
    types = ask_every(TYPES_SECONDS / 2, read_unknown_types).value
    if not types:
        return
    st.markdown("#### Event types that Weir does not know")
    st.warning(
        f"{count(sum(unknown.events for unknown in types))} accepted events are on no bill, because Weir does not know "
        "their type: a typo, or a version newer than this Weir.",
        icon=":material/help:",
    )
    show_table([_type_row(unknown) for unknown in types], "unknown-types")


def _type_row(unknown: UnknownType) -> dict[str, Value]:
    return {
        "type": unknown.type or "further types",
        "events": unknown.events,
        "last source": unknown.last_source or "none",
        "last seen (UTC)": unknown.last_seen_at,
        "first seen (UTC)": unknown.first_seen_at,
    }


def _figures(found: Sources) -> None:
    latest = [source for source in found.sources if source.is_latest_epoch]
    figures = {
        "Sources": f"{len(latest):,}",
        "Silent": f"{sum(found.is_silent(source) for source in latest):,}",
        "With missing numbers": f"{sum(source.missing > 0 for source in latest):,}",
        "Missing numbers": f"{sum(source.missing for source in latest):,}",
        "Silent after": "unknown" if found.silent_after is None else span(found.silent_after),
    }
    for column, (label, value) in zip(st.columns(len(figures)), figures.items(), strict=True):
        column.metric(label, value)


def _state(source: Source, found: Sources) -> str:
    if found.is_retired(source):
        return "● retired"
    if found.is_silent(source):
        return "⚠ silent"
    if source.missing:
        return "⚠ missing numbers"
    if source.unsequenced:
        return "? unsequenced"
    return "✓ complete" if source.has_sequence else "✓ heard"


def _row(source: Source, found: Sources) -> dict[str, Value]:
    ranges = ", ".join(source.missing_ranges)
    more = " …" if len(source.missing_ranges) == MAX_RANGES else ""
    return {
        "source": source.source,
        "epoch": source.source_epoch or "none",
        "state": _state(source, found),
        "silent for": span(found.feed.read_at - source.last_seen_at),
        "last seen (UTC)": source.last_seen_at,
        "last account": source.account or "none",
        "missing": source.missing if source.has_sequence else None,
        "missing numbers": ranges + more,
        "arrived in sequence": source.arrived if source.has_sequence else None,
        "first seen (UTC)": source.first_seen_at,
    }
