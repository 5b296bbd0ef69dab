"""One stack for all attacks, with short times and tiny chunks, so that what takes days shows in a minute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployment.stack import Stack, running_stack
from tests.e2e.conftest import weir_at

TIMEOUT_SECONDS = 8
CHUNK_ROWS = 50
CONFIG = {
    "jobs": {
        "ingestion": {"max_clock_ahead_seconds": TIMEOUT_SECONDS // 2},
        "joins": {"completion_timeout_seconds": TIMEOUT_SECONDS, "max_records_per_batch": CHUNK_ROWS},
        "billing": {"grace_seconds": 4 * TIMEOUT_SECONDS, "max_records_per_batch": CHUNK_ROWS},
        "sessionization": {"max_records_per_batch": CHUNK_ROWS},
    }
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack of its own for each file: an attack may leave nothing that another could go on from."""
    with attacked(tmp_path_factory.mktemp("attacked"), CONFIG) as running:
        yield running


@contextmanager
def attacked(folder: Path, settings: dict[str, Any]) -> Iterator[Stack]:
    """A stack with these settings, its data below `folder`."""
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(settings))
    data_dir = folder / "weir"
    started = weir_at(data_dir, "up", "--detach", "--config", str(config))
    assert started.returncode == 0, started.stdout + started.stderr
    yield running_stack(data_dir)
    stopped = weir_at(data_dir, "down")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
