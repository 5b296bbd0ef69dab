"""The dashboard as an ASGI application: Streamlit's, and each page's document says where the server is.

Streamlit's own document does not: on /windows the browser looks for the server below /windows first, and its console
has two 404s.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from dashboard.pages import PAGES
from dashboard.sign_in import SignIn

DOCUMENT = Path(st.__file__).parent / "static" / "index.html"
SERVER = """<head><script>window.__streamlit = {BACKEND_BASE_URL: new URL("./", location.href).href}</script>"""
"""A page has one part in its path, so that the server is where the page would look for a relative address."""


def _document(_: Request, html: str) -> HTMLResponse:
    return HTMLResponse(html, headers={"Cache-Control": "no-cache"})


def _home(request: Request) -> RedirectResponse:
    """To the first page, which Streamlit knows only by the address without a path: of any other it says not found."""
    return RedirectResponse(f"./?{request.url.query}" if request.url.query else "./")


def _routes() -> list[Route]:
    base = st.get_option("server.baseUrlPath").strip("/")
    html = (
        DOCUMENT.read_text(encoding="utf-8").replace("<head>", SERVER, 1).replace("<title>Streamlit<", "<title>Weir<")
    )
    answer = partial(_document, html=html)
    first, *others = PAGES
    routes: dict[str, Callable[..., Response]] = {first: _home, **dict.fromkeys(("", *others), answer)}
    return [Route("/".join(("", *filter(None, (base,)), page)), shown) for page, shown in routes.items()]


def _secrets() -> dict[str, Any] | None:
    sign_in = SignIn.of(os.environ)
    return None if sign_in is None else sign_in.streamlit_secrets()


app = st.App(Path(__file__).with_name("app.py"), routes=_routes(), secrets=_secrets())
