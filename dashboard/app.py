"""The dashboard, as `python -m dashboard` serves it; `settings.py` reads its environment."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard.pages import PAGES
from dashboard.panel import backend
from dashboard.sign_in import NotSignedIn, SeesNothing, viewer
from dashboard.wording import literal

# A Material icon as the page's icon would be fetched from fonts.gstatic.com.
st.set_page_config(page_title="Weir", page_icon=str(Path(__file__).with_name("icon.svg")), layout="wide")

try:
    source = backend()
except ValueError as problem:
    st.error(str(problem), icon=":material/lock:")
    st.stop()
except NotSignedIn as reason:
    st.title("Weir")
    st.write(str(reason))
    st.button("Sign in", type="primary", on_click=st.login)
    st.stop()
except SeesNothing as reason:
    st.error(literal(str(reason)), icon=":material/lock:")
    st.button("Sign out", on_click=st.logout)
    st.stop()
scope = source.scope

st.logo(str(Path(__file__).with_name("weir.svg")), size="large")
st.html(Path(__file__).with_name("style.css"))
pages = [
    st.Page(
        page.show, title=page.title, icon=f":material/{page.icon}:", url_path=path, default=path == next(iter(PAGES))
    )
    for path, page in PAGES.items()
]
page = st.navigation(pages, expanded=True)
with st.sidebar:
    if scope.is_all:
        st.caption(":material/visibility: All accounts")
    else:
        st.caption(f":material/lock: Only {literal(', '.join(sorted(scope.accounts or ())))}")
    st.caption(":material/schedule: All times are UTC")
    if source.settings.sign_in:
        st.caption(f":material/person: {literal(viewer(st.user.to_dict()))}")
        st.button("Sign out", on_click=st.logout)
page.run()
