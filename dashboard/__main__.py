"""`python -m dashboard [OPTIONS]`: `streamlit run dashboard/app.py`, with everything loaded before a viewer comes.

Streamlit would load the pages, and Altair its definition of a chart, while the first viewer waits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import altair as alt
from streamlit.web import cli

from dashboard.views import alerts, bills, joins, late, overview, runbook, sessions, sources, windows  # noqa: F401


def main() -> None:
    """Serve until ended; OPTIONS are those of `streamlit run`."""
    alt.Chart(alt.InlineData([{"x": 0}])).mark_bar().encode(x="x:Q").to_dict()
    cli.main(["run", str(Path(__file__).with_name("app.py")), *sys.argv[1:]])


if __name__ == "__main__":
    main()
