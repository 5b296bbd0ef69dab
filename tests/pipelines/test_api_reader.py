"""The role that the API reads as: made and granted at each migration, also by an owner that is no superuser."""

from __future__ import annotations

from urllib.parse import urlsplit

import psycopg
import pytest

from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.api_reader import API_READER, BECOME
from jobs.runtime.postgres.relations import ASKED, ASKED_OF_CATALOG
from jobs.runtime.postgres.schema import migrate
from tests.pipelines.test_schema_downgrade import empty_database

GUARDED = """
SELECT relname, relkind, relrowsecurity, coalesce('security_invoker=true' = ANY (reloptions), false) AS is_invokers,
       EXISTS (
           SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname IN ('account', 'plan')
       ) AS is_of_accounts
FROM pg_class WHERE oid = to_regclass(%s)
"""


@pytest.mark.parametrize("relation", [*(f"weir.{name}" for name in ASKED), *(f"catalog.{n}" for n in ASKED_OF_CATALOG)])
def test_every_table_with_accounts_that_the_role_reads_has_row_level_security(database: str, relation: str) -> None:
    with psycopg.connect(database) as session:
        row = session.execute(GUARDED, [relation]).fetchone()
    assert row is not None
    _, kind, has_policies, is_invokers, is_of_accounts = row
    assert not is_of_accounts or (is_invokers if kind == "v" else has_policies)


def test_an_owner_that_is_no_superuser_may_become_it_and_is_held_by_no_policy_otherwise(postgres_url: str) -> None:
    with empty_database(postgres_url) as database, psycopg.connect(database, autocommit=True) as server:
        name = urlsplit(database).path[1:]
        owner = f"owner_{name[5:20]}"
        server.execute(f"CREATE ROLE {owner} LOGIN CREATEROLE PASSWORD 'x'")
        server.execute(f"ALTER DATABASE {name} OWNER TO {owner}")
        # As on a managed server, where an administrator made it: this one is of the whole server, and of other tests.
        server.execute(f"GRANT {API_READER} TO {owner} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE")
        place = urlsplit(database)
        url = place._replace(netloc=f"{owner}:x@{place.hostname}:{place.port}").geturl()
        try:
            migrate(url)
            with psycopg.connect(in_schema(url)) as session:
                session.execute(
                    "INSERT INTO usage_windows (account, meter, window_start, window_end, quantity) "
                    "VALUES ('acme', 'requests', '2026-11-01T10:00Z', '2026-11-01T10:01Z', 1)"
                )
                assert session.execute("SELECT count(*) FROM usage_windows").fetchone() == (1,)
                session.execute(BECOME)
                assert session.execute("SELECT count(*) FROM usage_windows").fetchone() == (0,)
                session.execute("SELECT set_config('weir.accounts', '[\"acme\"]', true)")
                assert session.execute("SELECT count(*) FROM usage_windows").fetchone() == (1,)
        finally:
            server.execute(f"ALTER DATABASE {name} OWNER TO CURRENT_USER")
            server.execute(f"REASSIGN OWNED BY {owner} TO CURRENT_USER; DROP OWNED BY {owner}; DROP ROLE {owner}")
