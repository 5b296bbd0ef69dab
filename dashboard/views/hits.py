"""The panel of watches and their hits on the page Watch."""

from __future__ import annotations

import streamlit as st

from dashboard.freshness import Freshness, State, freshness
from dashboard.panel import ask_every, head
from dashboard.queries.watches import MAX_HITS, MAX_WATCHES, Hit, HitFilter, Hits, Watch, read_hits
from dashboard.table import Value, show_table
from dashboard.views.event import event_link
from dashboard.wording import UNKNOWN

REFRESH_SECONDS = 20
EXAMPLE = """\
weir watch add large-answers --when 'model = "gpt-4o" and output_tokens > 100000'
"""


@st.fragment(run_every=REFRESH_SECONDS)
def show_hits(chosen: HitFilter) -> None:
    """Draw it."""
    found = head("Watches and their hits", ask_every(REFRESH_SECONDS / 2, read_hits, chosen), _freshness)
    if found is None:
        return
    if not found.watches:
        st.write("There is no watch that you may see. Add one, and every outcome is tested against it:")
        st.code(EXAMPLE, language="sh")
        st.caption('A watch with `account = "…"` in its condition is shown to readers of that account.')
        return
    if not found.are_run:
        st.warning(
            "These watches are off: analytics does not run, or was started without `watches: true` in its "
            "configuration.",
            icon=":material/visibility_off:",
        )
    show_table([_watch(watch, are_run=found.are_run) for watch in found.watches], "watches")
    if not found.hits:
        st.info("No hit in this time.", icon=":material/search_off:")
        return
    show_table([_hit(hit) for hit in found.hits], "hits")
    st.caption("For each watch and hour the first 100 hits are listed; all are counted.")
    if found.is_cut:
        st.caption(
            f"Only {MAX_WATCHES:,} watches with most hits and the latest {MAX_HITS:,} hits are shown; "
            "`weir watch list` and `weir watch hits` list all."
        )


def _freshness(found: Hits) -> Freshness:
    if found.feed.reported_at is None and found.watches:
        return Freshness(State.NEVER_HAD_DATA, "analytics has not run on this database yet.")
    return freshness(found.feed, found.feed.frontier, "outcomes")


def _watch(watch: Watch, *, are_run: bool) -> dict[str, Value]:
    state = "○ off" if not are_run else "▶ running" if watch.is_running else "◔ waiting"
    return {
        "watch": watch.name,
        "hits": watch.hits,
        "last hour with hits (UTC)": watch.last_hour,
        "state": state,
        "condition": watch.condition,
        "added by": watch.added_by,
        "added (UTC)": watch.added_at,
    }


def _hit(hit: Hit) -> dict[str, Value]:
    return {
        "occurred (UTC)": hit.event_time,
        "watch": hit.name,
        "account": hit.account or UNKNOWN,
        "request": hit.request_id,
        "became": None if hit.request_id is None else event_link(hit.request_id, hit.event_time),
    }
