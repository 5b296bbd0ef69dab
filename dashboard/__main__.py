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
    _check_sign_in()
    cli.main(["run", str(Path(__file__).with_name("server.py")), *sys.argv[1:]])


def _check_sign_in() -> None:
    """Exit with a sentence if sign-in is not whole. Streamlit signs its sessions with the cookies' secret, too."""
    try:
        sign_in = SignIn.of(os.environ)
    except ValueError as problem:
        sys.exit(str(problem))
    if sign_in is not None:
        # Read before `st.App` has its secrets, and random if not set: another pod would refuse a viewer who comes back.
        os.environ["STREAMLIT_SERVER_COOKIE_SECRET"] = sign_in.cookie_secret.get_secret_value()


if __name__ == "__main__":
    main()
