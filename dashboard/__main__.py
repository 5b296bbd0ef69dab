"""`python -m dashboard [OPTIONS]`: `streamlit run dashboard/server.py`, with everything loaded before the first viewer.

Otherwise Streamlit would load the pages, and Altair its chart schema, while that viewer waits.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import altair as alt
from streamlit.web import cli

from dashboard import views
from dashboard.sign_in import SignIn


def main() -> None:
    """Serve until ended; OPTIONS are those of `streamlit run`."""
    for view in iter_modules(views.__path__, prefix=f"{views.__name__}."):
        import_module(view.name)
    alt.Chart(alt.InlineData([{"x": 0}])).mark_bar().encode(x="x:Q").to_dict()
    cli.main(["run", str(Path(__file__).with_name("server.py")), *_sign_in_options(), *sys.argv[1:]])


def _sign_in_options() -> list[str]:
    try:
        sign_in = SignIn.of(os.environ)
    except ValueError as problem:
        sys.exit(str(problem))
    return [] if sign_in is None else ["--secrets.files", str(sign_in.streamlit_secrets())]


if __name__ == "__main__":
    main()
