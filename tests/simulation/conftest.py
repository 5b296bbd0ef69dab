"""What the histories share: one database for all, which each has to itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tests.simulation.simulate import quick_database


@pytest.fixture(scope="package")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the database; nobody logs what drivers say."""
    configured = structlog.get_config()
    structlog.configure(processors=[dropped])
    with quick_database(tmp_path_factory.mktemp("histories")) as url:
        yield url
    structlog.configure(**configured)


def dropped(*_: object) -> dict[str, object]:
    """Of thousands of crashed drivers nobody reads the log."""
    raise structlog.DropEvent
