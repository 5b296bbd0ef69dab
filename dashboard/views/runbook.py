"""The meaning of each alert, how to diagnose and fix it: monitoring/runbook.md, where alerts link to."""

from __future__ import annotations

import re
from importlib.resources import files

import streamlit as st

GUIDE_LINK = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)[^)]*\)")
"""A link to a page of the guide, which the dashboard does not serve: its text, and the page's file."""
STAY_AT_HEADING = """<script>
(() => {
  const heading = document.getElementById(location.hash.slice(1));
  if (!heading) return;
  const stay = new ResizeObserver(() => heading.scrollIntoView());
  stay.observe(heading.closest("[data-testid=stMainBlockContainer]"));
  for (const moved of ["wheel", "touchmove", "pointerdown", "keydown"])
    addEventListener(moved, () => stay.disconnect(), {once: true, passive: true});
})();
</script>"""
"""Streamlit scrolls to a heading as soon as it is drawn, and fonts that load later move it by pages: the page scrolls
again whenever its height changes, until the reader scrolls."""


def show() -> None:
    """Draw the runbook; the anchor of a heading is the alert's name in lower case, as in the links of the rules."""
    text = GUIDE_LINK.sub(r"\1 (`\2`)", files("monitoring").joinpath("runbook.md").read_text(encoding="utf-8"))
    beginning, *sections = re.split(r"^## (\w+)\n", text, flags=re.MULTILINE)
    st.markdown(beginning)
    for name, section in zip(sections[::2], sections[1::2], strict=True):
        st.header(name, anchor=name.lower())
        st.markdown(section)
    st.html(STAY_AT_HEADING, unsafe_allow_javascript=True)
