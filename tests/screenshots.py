"""`make screenshots`: the README's pictures, taken of the dashboard of a running stack that has metered traffic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from playwright.sync_api import Page, ViewportSize, expect

from deployment.stack import StackNotRunning, running_stack
from tests.browser import CHROMIUM, PATIENCE_MS, chromium
from tests.e2e.test_dashboard import THEMES, address, wait_until_it_stands

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
PAGES = {"overview": "residual 0", "bills": "EUR, month to date"}
"""Page → what it shows once its data is there."""
SIZE: ViewportSize = {"width": 1280, "height": 800}


def take(page: Page, url: str, name: str) -> None:
    """One picture for each theme, once the page's data and charts stand."""
    page.goto(url)
    expect(page.get_by_text(PAGES[name]).first).to_be_visible(timeout=PATIENCE_MS)
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        wait_until_it_stands(page)
        page.screenshot(path=ASSETS / f"{name}-{theme}.png")


def main(data_dir: Annotated[Path, typer.Option(help="The folder of the stack.")] = Path(".weir")) -> None:
    """Write docs/assets/*.png. Exit status 1 without a running stack, or without chromium."""
    try:
        stack = running_stack(data_dir)
    except StackNotRunning as problem:
        sys.exit(f"{problem} Then send it traffic: `weir traffic`.")
    if CHROMIUM is None:
        sys.exit("chromium is not on the PATH: install it, and run this again.")
    with chromium() as browser:
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(PATIENCE_MS)
        for name in PAGES:
            take(page, address(stack, name), name)


if __name__ == "__main__":
    typer.run(main)
