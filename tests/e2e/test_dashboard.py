"""The dashboard in a real browser, on the running stack while traffic flows. Screenshots of every page in both themes
are left in .artifacts/dashboard, to be looked at by a person."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Page, expect

from deployment.stack import Stack
from tests.browser import CHROMIUM, PATIENCE_MS, chromium, noise_of
from tests.e2e.metering import Customer, drain, new_customer
from tests.e2e.watched import Traffic

SCREENSHOTS = Path(__file__).parents[2] / ".artifacts" / "dashboard"
NUMBER = re.compile(r"[0-9,]+")
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PROBED = "UncorrectedClocks"
"""An alert that no traffic of these tests raises."""
SHOWN = {
    "overview": ["Applications", "ingestion", "sessionization", "joins", "billing", "received", "residual 0", "Firing"],
    "windows": ["Usage per minute", "Open or closing", "Late rows, included", "Open a window"],
    "sessions": ["Open now", "Users active", "Median length"],
    "late": [
        *("Stragglers: received after grace", "Corrections of closed windows", "How late usage is"),
        *("With a grace of", "would have been stragglers"),
    ],
    "joins": ["What became of requests", "matched", "waiting now", "Price versions", "What accounts pay now"],
    # This stack declares no view: test_models_page has some.
    "models": ["The last hour", "This page shows a view by"],
    # Nor a pattern or a watch: test_watch_page has some.
    "watch": ["Thresholds", "Pattern matches", "Watches and their hits"],
    "bills": ["EUR, month to date", "Lines of", "Open a line"],
    # No month of this traffic is over, so there may be no invoice: test_invoices_page has some.
    "invoices": ["Invoices", "Account", "Issued"],
    "event": ["What became of", "Billed: ", "On the bill", "Rows of usage", "Records as received", "it adds up"],
    "audit": ["Audits: what was proved"],
    "sources": ["Sources", "Missing numbers", "Silent after"],
    "alerts": ["Firing alerts", "Pending alerts", "History"],
    "runbook": ["FreshnessBurnFast", "SequenceGap"],
}
"""What stands on each page when it has data."""


@pytest.fixture(scope="module")
def customer(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Customer]:
    """An account that is sending, and has sent enough for every page."""
    folder = tmp_path_factory.mktemp("dashboard")
    customer = new_customer(stack, folder)
    customer.send(stack, folder, 40)
    with Traffic(stack, customer.account).steady():
        drain(stack)
        yield customer


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        assert not os.environ.get("CI"), "CI installs chromium"
        pytest.skip("chromium is not on the PATH")
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("name", SHOWN)
def test_each_page_shows_its_data_while_traffic_flows(stack: Stack, customer: Customer, page: Page, name: str) -> None:
    noise = noise_of(page, stack.dashboard_url)
    page.goto(address(stack, name, customer))
    main = page.get_by_test_id("stMain")
    backgrounds = set()
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        for word in SHOWN[name]:
            expect(main.get_by_text(word).first).to_be_visible(timeout=PATIENCE_MS)
        if name not in ("alerts", "audit", "invoices", "models", "runbook"):
            expect(main.locator("h4").first).to_contain_text("live", timeout=PATIENCE_MS)
        expect(page.get_by_test_id("stException")).to_have_count(0)
        for fault in ("backend down", "not connected", "stale"):
            expect(main.locator("h4", has_text=fault)).to_have_count(0)
        keep_screenshot(page, f"{name}-{theme}")
        backgrounds.add(background(page))
    assert len(backgrounds) == 2
    assert noise == [], "the console is empty, and no request fails or leaves the host"


def test_the_themes_differ(stack: Stack, browser: Browser) -> None:
    backgrounds = set()
    for theme in THEMES:
        context = browser.new_context(color_scheme=theme)
        page = context.new_page()
        page.goto(address(stack, "alerts"))
        expect(page.locator("h4").first).to_be_visible(timeout=PATIENCE_MS)
        backgrounds.add(background(page))
        context.close()
    assert len(backgrounds) == 2


def test_a_live_window_grows_without_reload(stack: Stack, customer: Customer, page: Page) -> None:
    page.goto(address(stack, "windows", customer))
    page.evaluate("window.notReloaded = true")
    figure = page.get_by_test_id("stMetric").filter(has_text="Requests in them").get_by_test_id("stMetricValue")
    expect(figure).to_have_text(NUMBER, timeout=PATIENCE_MS)
    before = int(figure.inner_text().replace(",", ""))
    page.wait_for_function(
        """before => [...document.querySelectorAll('[data-testid=stMetric]')]
            .filter(metric => metric.innerText.includes('Requests in them'))
            .some(metric => parseInt(metric.innerText.replace(/[^0-9]/g, '')) > before)""",
        arg=before,
        timeout=PATIENCE_MS,
    )
    assert page.evaluate("window.notReloaded") is True


def test_a_filter_lives_in_the_link(stack: Stack, customer: Customer, page: Page) -> None:
    page.goto(address(stack, "bills", customer))
    expect(page.get_by_text(f"Lines of {customer.account}")).to_be_visible(timeout=PATIENCE_MS)
    page.goto(f"{stack.dashboard_url}/windows")
    page.get_by_test_id("stMain").get_by_text("model", exact=True).click()
    page.wait_for_url("**by=model**", timeout=PATIENCE_MS)


def test_a_table_downloads_as_csv(stack: Stack, customer: Customer, page: Page) -> None:
    page.goto(address(stack, "bills", customer))
    button = page.get_by_test_id("stDownloadButton").first.get_by_role("button")
    expect(button).to_be_visible(timeout=PATIENCE_MS)
    # A click on a button that is being drawn again is lost.
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")
    with page.expect_download(timeout=PATIENCE_MS) as download:
        button.click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    assert text.startswith("account,name,month_to_date,with_accounts_below,currency")
    assert customer.account in text
    # Streamlit's own download would have a spreadsheet run what a name says.
    page.get_by_test_id("stDataFrame").first.hover()
    toolbar = page.get_by_test_id("stElementToolbar").first
    expect(toolbar.get_by_label("Fullscreen").first).to_be_visible()
    expect(toolbar.get_by_label("Download as CSV").first).to_be_hidden()


def test_an_alert_appears_leads_to_its_runbook_and_disappears_without_reload(stack: Stack, page: Page) -> None:
    if not stack.alertmanager_url:
        assert not os.environ.get("CI"), "CI installs prometheus-alertmanager"
        pytest.skip("Alertmanager is not on the PATH")
    source = f"probe-{uuid4().hex[:8]}"
    page.goto(address(stack, "alerts"))
    expect(page.get_by_text("Firing alerts")).to_be_visible(timeout=PATIENCE_MS)
    page.evaluate("window.notReloaded = true")
    now = datetime.now(UTC)
    tell_alertmanager(stack, source, now, now + timedelta(minutes=5))
    expect(page.get_by_text(source).first).to_be_visible(timeout=PATIENCE_MS)
    expect(page.get_by_text("Tested in a browser").first).to_be_visible()
    with page.context.expect_page() as opened:
        page.get_by_text(source).first.get_by_role("link", name="Runbook").click()
    heading = opened.value.get_by_role("heading", name=PROBED)
    expect(heading).to_be_in_viewport(timeout=PATIENCE_MS)

    tell_alertmanager(stack, source, now, datetime.now(UTC))
    expect(page.get_by_text(source)).to_have_count(0, timeout=PATIENCE_MS)
    assert page.evaluate("window.notReloaded") is True


@pytest.mark.parametrize("name", ["FreshnessBurnFast", "WaitingRequestsGrowing", "SlotNearlyLost"])
def test_the_link_of_an_alert_stays_at_its_heading(stack: Stack, page: Page, name: str) -> None:
    page.goto(f"{address(stack, 'runbook')}#{name.lower()}")
    heading = page.get_by_role("heading", name=name)
    expect(heading).to_be_in_viewport(timeout=PATIENCE_MS)
    wait_until_it_stands(page)
    expect(heading).to_be_in_viewport(timeout=PATIENCE_MS)


def address(stack: Stack, name: str, customer: Customer | None = None) -> str:
    """A page's link; the pages that have the filter show one account, the one of an event its first request."""
    path = "" if name == "overview" else name
    if customer is not None and name == "event":
        return f"{stack.dashboard_url}/event?id={customer.account}-0"
    takes_account = customer is not None and name in ("windows", "bills", "late")
    return f"{stack.dashboard_url}/{path}" + (f"?account={customer.account}" if customer and takes_account else "")


def keep_screenshot(page: Page, name: str) -> None:
    """The whole page, once its charts stand."""
    wait_until_it_stands(page)
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": 1440, "height": min(height + 20, 2_400)})
    wait_until_it_stands(page)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def wait_until_it_stands(page: Page) -> None:
    """Until every chart is drawn, nothing is loading, and the page has had one height for a while."""
    page.evaluate("window.looks = {height: 0, alike: 0}")
    page.wait_for_function(
        """() => {
            const height = document.querySelector('[data-testid=stMain]').scrollHeight;
            const charts = [...document.querySelectorAll('[data-testid=stVegaLiteChart]')];
            const stands = charts.every(chart => chart.querySelector('canvas, svg'))
                && !document.querySelector('[data-testid=stSkeleton], [data-testid=stSpinner]');
            window.looks = {height, alike: stands && height === window.looks.height ? window.looks.alike + 1 : 0};
            return window.looks.alike >= 3;
        }""",
        polling=100,
        timeout=PATIENCE_MS,
    )


def background(page: Page) -> str:
    """The colour that the page stands on."""
    colour: str = page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
    return colour


def tell_alertmanager(stack: Stack, source: str, start: datetime, end: datetime) -> None:
    """As Prometheus does: an alert that has begun, or has ended."""
    rules = (stack.data_dir / "prometheus" / "weir.rules.yaml").read_text(encoding="utf-8")
    (link,) = re.findall(rf"runbook_url: (\S+#{PROBED.lower()})", rules)
    alert = {
        "labels": {"alertname": PROBED, "severity": "ticket", "source": source},
        "annotations": {"summary": "Tested in a browser", "runbook_url": link},
        "startsAt": start.isoformat(),
        "endsAt": end.isoformat(),
    }
    body = json.dumps([alert]).encode()
    asked = Request(f"{stack.alertmanager_url}/api/v2/alerts", data=body, headers={"Content-Type": "application/json"})
    with urlopen(asked, timeout=60) as answer:
        assert answer.status == 200
