"""Chromium, as the tests of the dashboard and `make screenshots` use it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

CHROMIUM = shutil.which("chromium")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
PATIENCE_MS = 45_000
expect.set_options(timeout=PATIENCE_MS)
"""Also where nothing is said: five seconds, which are the default, say how busy the machine is."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium without a window, until the block ends; it must be on the PATH."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def noise_of(page: Page, address: str) -> list[str]:
    """What will stand in the page's console, and each request that fails or goes to another server than `address`.

    What the next navigation cancels has not failed: on a busy machine a part of a page may still be on its way.
    """
    noise = list[str]()
    page.on("console", lambda message: noise.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("response", lambda response: noise.append(response.url) if response.status >= 400 else None)
    page.on(
        "requestfailed", lambda request: noise.append(f"{request.url}: {request.failure}") if _fails(request) else None
    )
    page.on("request", lambda request: noise.append(request.url) if _leaves(request.url, address) else None)
    return noise


def _fails(request: Request) -> bool:
    return request.failure != "net::ERR_ABORTED"


def _leaves(url: str, address: str) -> bool:
    place = urlsplit(url)
    return place.scheme not in ("data", "blob") and place.netloc != urlsplit(address).netloc
