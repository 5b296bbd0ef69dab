"""What each alert means, how to look, and what to do: monitoring/runbook.md, where alerts link to."""

from __future__ import annotations

from importlib.resources import files

import streamlit as st


def show() -> None:
    """Draw the runbook; the address of a heading is the alert's name in lower case."""
    st.markdown(files("monitoring").joinpath("runbook.md").read_text(encoding="utf-8"))
