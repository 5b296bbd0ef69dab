"""The dashboard in a browser below a path, as an ingress of the chart serves it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from playwright.sync_api import expect
from starlette.requests import Request

from dashboard.pages import PAGES
from dashboard.server import _routes
from laptop.ports import free_port
from tests.browser import CHROMIUM, PATIENCE_MS, chromium, noise_of
from tests.waiting import wait_until


@pytest.fixture
def address(seeded: str, connected: str) -> Iterator[str]:
    """A dashboard of the seeded tables, served below a path."""
    port = free_port()
    address = f"http://127.0.0.1:{port}/live"
    command = [sys.executable, "-m", "dashboard", "--server.address", "127.0.0.1", "--server.port", str(port)]
    process = subprocess.Popen(command, env={**os.environ, "STREAMLIT_SERVER_BASE_URL_PATH": "/live"})
    try:
        wait_until(lambda: is_healthy(address), "the dashboard's first answer")
        yield address
    finally:
        process.terminate()
        process.wait(120)


def is_healthy(address: str) -> bool:
    try:
        with urlopen(f"{address}/_stcore/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # refused: a URLError; answered too late: a TimeoutError, which is none
        return False


def test_the_address_of_the_first_page_leads_to_the_address_without_a_path() -> None:
    """Streamlit says of it that there is no such page."""
    first = next(iter(PAGES))
    (lead,) = [route.endpoint for route in _routes() if route.path == f"/{first}"]
    for query, place in ((b"", "./"), (b"account=acme", "./?account=acme")):
        request = Request({"type": "http", "path": f"/{first}", "query_string": query, "headers": []})
        assert lead(request).headers["location"] == place


def test_the_console_of_every_page_is_empty_and_no_request_leaves_the_server(address: str) -> None:
    if CHROMIUM is None:
        assert not os.environ.get("CI"), "CI installs chromium"
        pytest.skip("chromium is not on the PATH")
    first, *others = PAGES
    addresses = ["", "/", *(f"/{path}" for path in others), f"/{first}"]
    with chromium() as browser:
        page = browser.new_page()
        noise = noise_of(page, address)
        for path in addresses:
            page.goto(f"{address}{path}")
            heading = page.get_by_role("heading", name=PAGES[path.strip("/") or first].title, exact=True)
            expect(heading).to_be_visible(timeout=PATIENCE_MS)
            page.wait_for_load_state("networkidle")
            assert noise == [], path
            assert page.title() == "Weir"
            expect(page.get_by_text("Page not found")).to_have_count(0)
