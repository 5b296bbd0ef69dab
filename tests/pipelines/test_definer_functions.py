"""Functions that run with their owner's rights run nothing that their caller has declared, nor on tables of its own.

Method of the first: the caller declares, in its own temporary schema, domains of the names of all types that functions
use, with a check that notes whose rights it has. A type that a function resolves there runs that check.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.reader_role import ROLE
from jobs.runtime.postgres.schema import migrate
from tests.job_roles import PASSWORD

TYPES = ("name", "text", "date", "numeric", "jsonb", "timestamptz", "regclass", "interval", "boolean", "bigint")
WAYLAID = """
CREATE TEMP TABLE noted (rights text);
GRANT ALL ON noted TO PUBLIC;
CREATE FUNCTION pg_temp.notes() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pg_temp.noted VALUES (current_user);
    RETURN true;
END $$;
"""
DOMAIN = 'CREATE DOMAIN pg_temp."{name}" AS pg_catalog."{base}" CHECK (pg_temp.notes())'
ASKS = ("SELECT * FROM weir.pool_parts('2026-07-01', NULL)", "SELECT weir.refusal_of_release('0141')")
EDITS = (
    "INSERT INTO catalog.plans (plan, name) VALUES ('p', 'P')",
    """
    INSERT INTO catalog.accounts (account, name, plan, currency, timezone, effective_from)
    VALUES ('a', 'A', 'p', 'EUR', 'UTC', '2026-01-01')
    """,
    """
    INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, unit_price)
    VALUES ('p', 'm', 'requests', 'EUR', '2026-01-01', 1)
    """,
    "UPDATE catalog.prices SET unit_price = 2",
    "DELETE FROM catalog.prices",
)
BASES = {"boolean": "bool", "bigint": "int8"}
PATHS = """
SELECT oid::regprocedure::text, prosecdef, coalesce((
    SELECT setting FROM unnest(proconfig) AS setting WHERE starts_with(setting, 'search_path=')
), 'none')
FROM pg_proc
WHERE pronamespace IN ('weir'::regnamespace, 'catalog'::regnamespace) AND prokind = 'f' AND prosqlbody IS NULL
"""


MADE_UP = """
CREATE TEMP TABLE mine (
    account text, name text, plan text, currency text, parent text,
    effective_from timestamptz, changed_at timestamptz, deleted_at timestamptz
);
CREATE TRIGGER keeps AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION catalog.keep_account_history();
INSERT INTO mine VALUES ('acme', 'Acme', 'cheaper', 'EUR', NULL, NULL, now(), NULL);
"""
OPEN_TO_ALL = """
SELECT oid::regprocedure::text FROM pg_proc
CROSS JOIN aclexplode(coalesce(proacl, acldefault('f', proowner))) AS granted
WHERE pronamespace IN ('weir'::regnamespace, 'catalog'::regnamespace) AND prosecdef
  AND prorettype = 'trigger'::regtype AND grantee = 0
"""


def rights_of_what_it_declared(url: str, statements: Sequence[str]) -> set[str]:
    """With whose rights checks ran that the caller declared, while it ran these statements."""
    with psycopg.connect(url, autocommit=True) as caller:
        caller.execute(WAYLAID)
        for name in TYPES:
            caller.execute(DOMAIN.format(name=name, base=BASES.get(name, name)).encode())
        for statement in statements:
            caller.execute(statement.encode())
        return {rights for (rights,) in caller.execute("SELECT DISTINCT rights FROM pg_temp.noted").fetchall()}


def test_who_declares_types_sees_them_checked_with_its_own_rights(database: str) -> None:
    """The method finds what it looks for."""
    url = in_schema(make_conninfo(database, user="weir_billing", password=PASSWORD))
    assert rights_of_what_it_declared(url, ["SELECT 'a'::name"]) == {"weir_billing"}


def test_a_reader_runs_nothing_with_the_rights_of_the_owner(database: str) -> None:
    migrate(database, "of the reader")
    url = in_schema(make_conninfo(database, user=ROLE, password="of the reader"))
    assert rights_of_what_it_declared(url, ASKS) <= {ROLE}


def test_a_reader_writes_no_history_by_a_trigger_on_a_table_of_its_own(database: str) -> None:
    migrate(database, "of the reader")
    reader = in_schema(make_conninfo(database, user=ROLE, password="of the reader"))
    with psycopg.connect(reader) as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute(MADE_UP)
    with psycopg.connect(database) as owner:
        assert owner.execute("SELECT account, plan FROM catalog.account_history").fetchall() == []
        assert owner.execute(OPEN_TO_ALL).fetchall() == []


def test_a_function_that_looks_there_first_is_found(database: str) -> None:
    """As `pool_parts` was before migration 0144."""
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("ALTER FUNCTION pool_parts(date, text[]) SET search_path = pg_catalog")
    migrate(database, "of the reader")
    url = in_schema(make_conninfo(database, user=ROLE, password="of the reader"))
    assert "weir" in rights_of_what_it_declared(url, ASKS)


def test_an_application_runs_nothing_with_the_rights_of_the_owner(database: str) -> None:
    """helm's test edits the catalog, whose triggers keep histories, notes and the activity log."""
    url = in_schema(make_conninfo(database, user="weir_test", password=PASSWORD))
    assert rights_of_what_it_declared(url, EDITS) <= {"weir_test"}


def test_every_function_looks_for_temporary_names_last(database: str) -> None:
    with psycopg.connect(database) as connection:
        functions = connection.execute(PATHS).fetchall()
    assert len(functions) > 50
    wrong = [
        name
        for name, is_definers, path in functions
        if not path.endswith("pg_temp") and (is_definers or path != "none")
    ]
    assert wrong == []
