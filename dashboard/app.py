"""The live page: `streamlit run dashboard/app.py` with `WEIR_POSTGRES_URL` set."""

from __future__ import annotations

import streamlit as st

from dashboard.views import overview, windows

st.set_page_config(page_title="Weir", page_icon=":material/water:", layout="wide")
st.title("Weir")
overview.show()
windows.show()
