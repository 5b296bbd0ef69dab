"""What each alert means, how to look, and what to do: monitoring/runbook.md, where alerts link to."""

from __future__ import annotations

import re
from importlib.resources import files

import streamlit as st


def show() -> None:
    """Draw the runbook; the anchor of a heading is the alert's name in lower case, as in the links of the rules."""
    text = files("monitoring").joinpath("runbook.md").read_text(encoding="utf-8")
    beginning, *sections = re.split(r"^## (\w+)\n", text, flags=re.MULTILINE)
    st.markdown(beginning)
    for name, section in zip(sections[::2], sections[1::2], strict=True):
        st.header(name, anchor=name.lower())
        st.markdown(section)
