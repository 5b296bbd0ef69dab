"""The database role of docs/how-to/post-events.md, which reads two tables, is enough for the API."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from api.database_poll import DatabasePoll
from jobs.runtime.clock import MachineClock
from jobs.runtime.postgres.address import in_schema
from tests.api.serving import start_ingestion

PAGE = Path(__file__).parents[2] / "docs/how-to/post-events.md"


@pytest.fixture
def as_api(database: str) -> Iterator[str]:
    """The database's address for the role that the page makes."""
    (statements,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(statements)
        yield in_schema(make_conninfo(database, user="weir_api", password="…"))
        owner.execute("DROP OWNED BY weir_api; DROP ROLE weir_api")


def test_the_role_of_the_page_reads_what_the_api_needs_and_no_more(database: str, as_api: str) -> None:
    start_ingestion(database)
    configs: list[Mapping[str, Any]] = []
    poll = DatabasePoll(as_api, MachineClock(), configs.append)
    asyncio.run(poll.read())
    poll.close()
    assert poll.is_fresh
    assert len(configs) == 1
    with psycopg.connect(as_api) as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute("SELECT 1 FROM usage_windows")
