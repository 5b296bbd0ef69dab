"""`python -m dashboard [OPTIONS]`: `streamlit run dashboard/server.py`, with everything loaded before the first viewer.

Otherwise Streamlit would load the pages, and Altair its chart schema, while that viewer waits.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import altair as alt
from streamlit.web import cli

from dashboard import views


def main() -> None:
    """Serve until ended; OPTIONS are those of `streamlit run`."""
    for view in iter_modules(views.__path__, prefix=f"{views.__name__}."):
        import_module(view.name)
    alt.Chart(alt.InlineData([{"x": 0}])).mark_bar().encode(x="x:Q").to_dict()
    cli.main(["run", str(Path(__file__).with_name("server.py")), *sys.argv[1:]])


if __name__ == "__main__":
    main()
