"""The database role of docs/how-to/post-events.md is enough for the API: it reads three tables, and is a reader."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from api import key_store
from api.database_poll import DatabasePoll
from api.reader import AccountReader
from cli.redrive.offline import ingestion_of
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.erasures import publish_keys
from jobs.ingestion.topic_removals import store_removal
from jobs.runtime.clock import MachineClock
from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.ownership import Ownership
from metering.api_keys import ApiKey, Scope
from metering.erasure import keys_of
from metering.portal_tokens import PortalToken
from tests.api.serving import start_ingestion
from tests.database_rows import window, write

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
    ending: list[Collection[str]] = []
    with psycopg.connect(database) as connection:
        store_removal(connection.cursor(), "gone", "moved", "me", unread=0, waiting=0)
    poll = DatabasePoll(as_api, MachineClock(), configs.append, ending.append)
    asyncio.run(poll.read())
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("REVOKE SELECT ON topic_removals FROM weir_api")
    # As of a login that was made for an earlier release.
    asyncio.run(poll.read())
    poll.close()
    assert poll.is_fresh
    assert len(configs) == 2
    assert [[*topics] for topics in ending] == [["gone"], []]
    with psycopg.connect(as_api) as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute("SELECT 1 FROM usage_windows")


def test_no_portal_token_holds_where_it_cannot_be_read_which_were_invalidated(database: str, as_api: str) -> None:
    made = key_store.create(database, (Scope.PORTAL,), "test", accounts=("acme",))
    poll = DatabasePoll(as_api, MachineClock(), lambda _: None)
    asyncio.run(poll.read())
    maker = poll.key(made.key)
    assert maker is not None
    expires_at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    token = PortalToken(maker.id, "acme", expires_at, ()).text(maker)
    held = poll.key(token)
    assert held is not None
    assert poll.holds(held)
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("REVOKE SELECT ON portal_invalidations FROM weir_api_reader")
    asyncio.run(poll.read())
    poll.close()
    assert poll.key(token) is None
    assert not poll.holds(held)
    assert poll.key(made.key) == maker, "a key is read as before"


def test_the_ids_of_erasure_keys_that_ingestion_publishes_hinder_no_reader_of_its_configuration(database: str) -> None:
    secret = "a secret of this test that is long enough"
    owner = Ownership.take("ingestion", database, IngestionConfig(max_record_bytes=77_777).model_dump(mode="json"))
    publish_keys(owner, secret)
    stored = owner.connection.execute("SELECT config -> 'erasure_keys' FROM jobs").fetchone()
    assert stored == ([keys_of(secret)[0].id],)
    configs: list[Mapping[str, Any]] = []
    poll = DatabasePoll(database, MachineClock(), configs.append)
    asyncio.run(poll.read())
    poll.close()
    assert IngestionConfig.model_validate(configs[0]).max_record_bytes == 77_777
    assert ingestion_of(database).max_record_bytes == 77_777
    publish_keys(owner, "too short")
    assert owner.connection.execute("SELECT config -> 'erasure_keys' FROM jobs").fetchone() == ([],)
    owner.connection.close()


def test_the_role_of_the_page_answers_questions_within_the_accounts_of_a_key(database: str, as_api: str) -> None:
    noon = datetime(2026, 11, 1, 12, tzinfo=UTC)
    write(database, "usage_windows", window(noon, account="acme"), window(noon, account="globex"))

    async def seen(*accounts: str) -> list[str]:
        reader = AccountReader(as_api)
        key = ApiKey("1", b"", frozenset(), frozenset(accounts))
        try:
            found = await reader.run(key, lambda asked: asked.execute("SELECT account FROM usage_windows").fetchall())
        finally:
            reader.close()
        return sorted(row["account"] for row in found)

    assert asyncio.run(seen("acme")) == ["acme"]
    assert asyncio.run(seen()) == ["acme", "globex"]
