"""Watch: how near accounts are to their thresholds, which patterns matched, and what watches hit."""

from __future__ import annotations

import streamlit as st

from dashboard.filters import choose, choose_account, choose_hours
from dashboard.queries.patterns import MatchFilter
from dashboard.queries.watches import HitFilter
from dashboard.views.hits import show_hits
from dashboard.views.matches import show_matches
from dashboard.views.thresholds import show_thresholds


def show() -> None:
    """Draw the page."""
    st.title("Watch")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        account = choose_account()
        hours = choose_hours((1, 6, 24, 168), 24)
        versions = choose("Matches", "versions", {"last": "as they are", "all": "every version"})
    show_thresholds(account)
    show_matches(MatchFilter(hours, account, all_versions=versions == "all"))
    show_hits(HitFilter(hours, account))
