"""One broker for the tests of the API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.serving import Server, serving, start_ingestion
from tests.conftest import fresh_database
from tests.streaming.brokers import running_broker


@pytest.fixture(scope="package")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture(scope="package")
def server(bootstrap: str, postgres_url: str) -> Iterator[Server]:
    """A running API of a database of its own with the shipped contracts in force."""
    with fresh_database(postgres_url) as database:
        start_ingestion(database)
        with serving(bootstrap, database) as running:
            yield running
