"""The panel of pattern matches on the page Watch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import streamlit as st

from dashboard.freshness import Freshness, freshness
from dashboard.panel import ask_every, head
from dashboard.queries.patterns import MAX_ROWS, Match, Matches, MatchFilter, read_matches
from dashboard.table import Value, show_table
from dashboard.wording import span

REFRESH_SECONDS = 20
EXAMPLE = """\
patterns:
  retry_storm:
    of: outcomes
    partition_by: [account, api_key_id]
    order_by: event_time
    pattern: A B{9,}
    define:
      A: api_key_id is not null and status = "error"
      B: status = "error" and gap <= PT30S
    within: PT10M
    measures: {failures: count(*), first_model: first(model)}
    after_match: skip past last row
"""


@st.fragment(run_every=REFRESH_SECONDS)
def show_matches(chosen: MatchFilter) -> None:
    """Draw it."""
    found = head("Pattern matches", ask_every(REFRESH_SECONDS / 2, read_matches, chosen), _freshness)
    if found is None:
        return
    if not found.patterns and not found.matches:
        st.write("No pattern is declared. In the file of `weir up --config`, or in the chart's values:")
        st.code(EXAMPLE, language="yaml")
        st.caption("A pattern with `account` in `partition_by` shows each account its own matches.")
        return
    if found.patterns:
        show_table(
            [
                {
                    "pattern": pattern.pattern,
                    "looks for": pattern.look_for,
                    "by": ", ".join(pattern.partition_by),
                    "matches": pattern.standing,
                    "retracted": pattern.retracted,
                    "final until (UTC)": pattern.final_until,
                }
                for pattern in found.patterns
            ],
            "patterns",
        )
    if not found.matches:
        st.info(
            f"No final match began in the last {span(timedelta(hours=chosen.hours))}.",
            icon=":material/search_off:",
        )
        return
    show_table([_row(match) for match in found.matches], "matches")
    if found.is_cut:
        st.caption(f"Only the latest {MAX_ROWS:,} are shown; `weir pattern matches` lists all.")


def _freshness(found: Matches) -> Freshness:
    return freshness(found.feed, found.feed.frontier, "outcomes")


def mark_of(match: Match) -> str:
    """What became of a match, or of a version of it."""
    if not match.is_last:
        return "◌ replaced"
    if match.is_retracted:
        return "⊘ retracted"
    return "● final" if match.is_first else "✎ revised"


def _row(match: Match) -> dict[str, Value]:
    return {
        "began (UTC)": match.started_at,
        "lasted": span(match.ended_at - match.started_at),
        "pattern": match.pattern,
        "state": mark_of(match),
        "version": match.version,
        "keys": _pairs(match.keys),
        "outcomes": match.outcomes,
        "measures": _pairs(match.measures),
        "changed (UTC)": match.changed_at,
        "match": match.match,
    }


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {'–' if value is None else value}" for name, value in values.items())
