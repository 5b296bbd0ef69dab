"""`python -m bench.dashboard`: how long each page takes to load in a browser with a million usage windows.

From navigation until every panel and table stands: first in a new browser with nothing
remembered, then again. CPU-seconds of server and browser are the part that a busy machine does not
change. Writes bench/results/dashboard-<time>.json.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import psutil
import psycopg
import typer
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console

from bench.dashboard_rows import FILL
from dashboard.backend import Backend
from dashboard.queries.accounts import read_accounts
from dashboard.queries.applications import read_applications
from dashboard.queries.bills import read_bills
from dashboard.queries.sessions import read_open_sessions
from dashboard.queries.sources import read_sources
from dashboard.queries.stragglers import StragglerFilter, read_stragglers
from dashboard.queries.windows import WindowFilter, read_windows
from dashboard.scope import Scope
from dashboard.settings import Settings
from jobs.runtime.postgres.reader_role import ROLE
from jobs.runtime.postgres.schema import migrate
from laptop.dashboard import dashboard_command
from laptop.database import embedded_database
from laptop.ports import LOOPBACK, free_port

RESULTS = Path(__file__).with_name("results")
AIM_SECONDS = 2.0
LOADS = 5
PASSWORD = "bench"
CHROMIUM = "/usr/bin/chromium"
CHROMIUM_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking")


class Expected(NamedTuple):
    """A page's path, and how many panels and tables it has here."""

    path: str
    panels: int
    tables: int


PAGES = {
    "overview": Expected("", 3, 0),
    "windows": Expected("windows", 1, 1),
    "windows of an account": Expected("windows?account=account-7", 1, 1),
    "sessions": Expected("sessions", 1, 1),
    "late and dropped": Expected("late", 2, 1),
    "joins": Expected("joins", 2, 0),
    "bills": Expected("bills", 1, 1),
    "bill of an account": Expected("bills?account=account-7", 2, 2),
    "sources": Expected("sources", 1, 1),
    "alerts": Expected("alerts", 3, 0),
}

STANDS = """([panels, tables]) => document.querySelectorAll('h4').length >= panels
    && document.querySelectorAll('[data-testid=stDataFrame] canvas').length >= tables"""

QUESTIONS: dict[str, Callable[[Backend], object]] = {
    "read_applications": read_applications,
    "read_accounts": read_accounts,
    "read_windows": lambda backend: read_windows(backend, WindowFilter()),
    "read_windows, 6 h": lambda backend: read_windows(backend, WindowFilter(hours=6)),
    "read_open_sessions": lambda backend: read_open_sessions(backend, None),
    "read_stragglers": lambda backend: read_stragglers(backend, StragglerFilter()),
    "read_bills": lambda backend: read_bills(backend, datetime.now(UTC).date().replace(day=1)),
    "read_sources": read_sources,
}


def main(
    windows: Annotated[int, typer.Option(help="Rows of usage_windows.", min=1_000)] = 1_000_000,
    loads: Annotated[int, typer.Option(help="How often each page is loaded.", min=1)] = LOADS,
) -> None:
    """Measure each page; the exit status is 1 when a median is above the aim."""
    console = Console(stderr=True, highlight=False)
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as scratch, embedded_database(Path(scratch)) as url:
        console.print(f"{windows:,} usage windows are made …")
        migrate(url, PASSWORD)
        with psycopg.connect(url) as connection:
            connection.execute(FILL.replace(":windows", str(windows)).encode())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        reader = url.replace(url.partition("//")[2].partition("@")[0], f"{ROLE}:{PASSWORD}", 1)
        load_seconds = {
            name: _ask(question, Backend(Settings(postgres_url=reader, scope=scope)))
            for name, question, scope in _questions()
        }
        with _dashboard(reader) as address, sync_playwright() as playwright:
            flags = list(CHROMIUM_FLAGS)
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
            found = {page: _load(browser, address, expected, loads, url) for page, expected in PAGES.items()}
            browser.close()
    for page, all_of in found.items():
        seconds, server, browser_seconds = (median(values) for values in zip(*map(astuple, all_of), strict=True))
        console.print(
            f"{page:24} first {all_of[0].seconds:5.2f} s, median {seconds:5.2f} s; "
            f"server {server:4.2f} and browser {browser_seconds:4.2f} CPU-s"
        )
    for name, answer in load_seconds.items():
        console.print(f"{name:46} median {answer:6.3f} s")
    console.print(f"Written to {_write(windows, found, load_seconds)}")
    if any(median(load.seconds for load in all_of) > AIM_SECONDS for all_of in found.values()):
        raise typer.Exit(1)


def _questions() -> Iterator[tuple[str, Callable[[Backend], object], Scope]]:
    for name, question in QUESTIONS.items():
        yield name, question, Scope()
        yield f"{name}, scope of one account", question, Scope(frozenset({"account-7"}))


def _ask(question: Callable[[Backend], object], backend: Backend) -> float:
    """Seconds of the median answer."""
    found = []
    for _ in range(LOADS):
        start = time.monotonic()
        question(backend)
        found.append(time.monotonic() - start)
    return round(median(found), 3)


@dataclass(frozen=True)
class Load:
    """One load of a page: elapsed seconds, and what server and browser spent."""

    seconds: float
    server_cpu_seconds: float
    browser_cpu_seconds: float


def _cpu_seconds(root: psutil.Process) -> float:
    """Of a process and its children."""
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _load(browser: Browser, address: str, expected: Expected, loads: int, url: str) -> list[Load]:
    """The first in a browser that has never seen the dashboard, the others in one that keeps its files."""
    found = []
    server, own = _server(), psutil.Process()
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    for _ in range(loads):
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE jobs SET updated_at = clock_timestamp()")
        page = context.new_page()
        before = _cpu_seconds(server), _cpu_seconds(own)
        start = time.monotonic()
        page.goto(f"{address}/{expected.path}")
        page.wait_for_function(STANDS, arg=[expected.panels, expected.tables], timeout=60_000, polling=20)
        seconds = time.monotonic() - start
        of_server = _cpu_seconds(server) - before[0]
        # The server is a child of this process too.
        found.append(Load(round(seconds, 3), round(of_server, 2), round(_cpu_seconds(own) - before[1] - of_server, 2)))
        if page.get_by_text("backend down").count():
            raise RuntimeError(f"{address} could not read its data")
        page.close()
    context.close()
    return found


def _server() -> psutil.Process:
    """The dashboard's process."""
    return next(child for child in psutil.Process().children() if "dashboard" in child.cmdline())


@contextmanager
def _dashboard(reader: str) -> Iterator[str]:
    """A dashboard of its own process, as `weir up` starts it."""
    port = free_port()
    environment = {**os.environ, "WEIR_POSTGRES_URL": reader, "WEIR_TABLES": "/nonexistent"}
    process = subprocess.Popen(dashboard_command(port), env=environment, stdout=subprocess.DEVNULL)
    address = f"http://{LOOPBACK}:{port}"
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"{address}/_stcore/health", timeout=2):
                break
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def _write(windows: int, found: dict[str, list[Load]], load_seconds: dict[str, float]) -> Path:
    now = datetime.now(UTC)
    result: dict[str, Any] = {
        "measured_at": now.isoformat(),
        "usage_windows": windows,
        "aim_seconds": AIM_SECONDS,
        "machine": {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()},
        "versions": {name: version(name) for name in ("weir", "streamlit", "psycopg")},
        "questions": load_seconds,
        "pages": {page: [asdict(load) for load in all_of] for page, all_of in found.items()},
    }
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"dashboard-{now:%Y-%m-%dT%H%M%SZ}.json"
    file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return file


if __name__ == "__main__":
    typer.run(main)
