"""The one running stack that all e2e tests share, with the broker, the database and the applications themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployment.processes import STACK_VARIABLE
from deployment.stack import Stack, read_stack, running_stack
from laptop.supervised import last_lines
from tests.e2e import older
from tests.e2e.older.metered import Metered
from traffic.declared import CONTRACTS, DECLARED_BY_OUTCOME, REVERSAL

LOG_LINES = 25
TRAFFIC_EVENTS = 6_000
OLDER_FIRST = "test_older_release.py"
# Short, so that no test waits long for what is abandoned and for windows that close.
CONFIG = {
    "jobs": {
        "ingestion": {
            "contracts": list(CONTRACTS),
            "reversal": REVERSAL,
            # Turned on with the upgrade: what the older release has metered stays.
            "shipped_conventions": True,
            "backfill": {"sources": ["history/*"], "accept_past_seconds": 366 * 86_400},
        },
        "joins": {"completion_timeout_seconds": 120},
        "billing": {"grace_seconds": 300},
    },
    **DECLARED_BY_OUTCOME,
}
_data_dirs: list[Path] = []


def weir_at(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a `weir` command on a data folder, as its own process."""
    command = [sys.executable, "-m", "cli.main", *arguments, "--data-dir", str(data_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


def up(data_dir: Path) -> subprocess.CompletedProcess[str]:
    """Start the stack of a data folder, configured as all tests share it."""
    config = data_dir.with_name("stack.json")
    config.write_text(json.dumps(CONFIG))
    return weir_at(data_dir, "up", "--detach", "--config", str(config))


def processes_of(stack_id: str) -> list[int]:
    """Pids of all processes that were started for this stack, children included, whether written down or not."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(STACK_VARIABLE) == stack_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the older release left open is decided as it was configured, before other tests change that."""
    items.sort(key=lambda item: item.path.parent == Path(__file__).parent and item.path.name != OLDER_FIRST)


@contextmanager
def running_on(data_dir: Path) -> Iterator[Stack]:
    """The stack of a data folder, which lives as long as the block and leaves no process."""
    _data_dirs.append(data_dir)
    try:
        started = up(data_dir)
        assert started.returncode == 0, started.stdout + started.stderr
        yield running_stack(data_dir)
    finally:
        last = read_stack(data_dir)
        stopped = weir_at(data_dir, "down")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert last is None or processes_of(last.id) == [], "weir down left processes running"


@dataclass(frozen=True)
class OlderFolder:
    """The data folder of an older release, and what that had metered."""

    data_dir: Path
    metered: Metered


@pytest.fixture(scope="session")
def older_folder(tmp_path_factory: pytest.TempPathFactory) -> OlderFolder:
    """The one that the shared stack goes on from."""
    data_dir = tmp_path_factory.mktemp("stack") / "weir"
    return OlderFolder(data_dir, older.unpack(older.SHARED, data_dir))


@pytest.fixture(scope="session")
def stack(older_folder: OlderFolder) -> Iterator[Stack]:
    """A running stack. Its addresses hold for the whole run; pids change: ask `running_stack(stack.data_dir)`.

    It goes on from the data folder of an older release, so every test here is one of an upgraded stack too.
    """
    with running_on(older_folder.data_dir) as running:
        yield running


@pytest.fixture(scope="session")
def truth_of_traffic(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The truth of generated traffic, sent when this is first asked for; the tests between may hurt the stack."""
    file = tmp_path_factory.mktemp("traffic") / "truth.json"
    sent = weir_at(stack.data_dir, "traffic", "--events", str(TRAFFIC_EVENTS), "--seed", "11", "--truth", str(file))
    assert sent.returncode == 0, sent.stdout + sent.stderr
    truth: dict[str, Any] = json.loads(file.read_text())
    return truth


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the end of every log."""
    report = yield
    if report.failed:
        for data_dir in _data_dirs:
            for log in sorted((data_dir / "logs").glob("*.log")):
                report.sections.append((f"{item.name}: {log.name}", "\n".join(last_lines(log, LOG_LINES))))
    return report
