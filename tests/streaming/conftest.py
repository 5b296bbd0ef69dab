"""One broker for the tests that make topics of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.streaming.brokers import running_broker


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with Weir's topics, which stay empty: a test writes to topics of its own.

    A file that writes to Weir's own ones, or changes the broker, runs a broker of its own.
    """
    with running_broker(tmp_path_factory.mktemp("kafka")) as address:
        yield address
