"""What the tests of batch pipelines share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the test's own database."""
    with psycopg.connect(database) as connection:
        yield connection
