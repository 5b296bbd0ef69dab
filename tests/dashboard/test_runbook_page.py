"""The page of the runbook, to which alerts lead: it has every alert, and no link that the dashboard does not serve."""

from __future__ import annotations

import re

from streamlit.testing.v1 import AppTest

from monitoring.alerts import ALERTS


def draw() -> None:
    from dashboard.views.runbook import show

    show()


def test_each_alert_has_its_section_and_a_page_of_the_guide_is_named_by_its_file() -> None:
    page = AppTest.from_function(draw, default_timeout=60).run()
    assert not page.exception
    assert {header.value for header in page.header} == {alert.name for alert in ALERTS}
    text = "\n".join(markdown.value for markdown in page.markdown)
    assert re.findall(r"\]\((?!https?:)", text) == []
    assert "a pod of its own (`docs/how-to/database-roles.md`)" in text
