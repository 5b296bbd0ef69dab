"""Weir in a database with other applications: their tables are neither touched nor read, and its own are moved.

Each database has an ordinary role that owns Weir, another one that owns something else, and the reader.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from psycopg import sql
from psycopg.types.json import Jsonb
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool
from typer.testing import CliRunner

from cli.main import app
from dashboard.backend import Backend
from dashboard.queries.accounts import read_accounts
from dashboard.settings import Settings
from jobs.__main__ import migrate as migrate_command
from jobs.runtime.errors import ExitStatus, Refused
from jobs.runtime.postgres import move, own_schema
from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.reader_role import ROLE as READER
from jobs.runtime.postgres.relations import CATALOG, EARLIER, OWN, SECRET, functions_made_by, made_by
from jobs.runtime.postgres.schema import MIGRATIONS, migrate, migrator, schema_is_current
from jobs.runtime.postgres.session import Session
from jobs.runtime.postgres.unavailable import database_is_unavailable

LAST_IN_PUBLIC = "0034"
RELATIONS = """
SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
  AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype IN ('i', 'a'))
"""


@dataclass(frozen=True)
class Shared:
    """A database of `owner`, in which `other` may make tables, too. The server's own role is `admin`."""

    admin: str
    owner: str
    other: str
    url: str

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.admin) as connection:
            return connection.execute(statement, parameters or None).fetchall()

    def names(self, schema: str) -> set[str]:
        return {name for (name,) in self.rows(RELATIONS, schema)}

    def make(self, schema: str, *tables: str, owner: str) -> None:
        with psycopg.connect(self.admin) as connection:
            for table in tables:
                name = sql.Identifier(schema, table)
                connection.execute(sql.SQL("CREATE TABLE {} AS SELECT 'theirs' AS secret").format(name))
                connection.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(name, sql.Identifier(owner)))

    def is_untouched(self, *tables: str) -> bool:
        return all(self.rows(f"SELECT * FROM public.{table}") == [("theirs",)] for table in tables)

    def shown_to_reader(self, schema: str) -> set[str]:
        statement = (
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'v')"
            " AND has_table_privilege(%s, oid, 'SELECT')"
        )
        return {name for (name,) in self.rows(statement, schema, READER)}


@dataclass(frozen=True)
class Server:
    """Two ordinary roles of the run's server, and what a database of Weir is copied from."""

    url: str
    owner: str
    other: str
    earlier: str
    """A database with what the release before made in `public`."""

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[Shared]:
        name = f"shared_{uuid4().hex}"
        here = urlsplit(self.url)._replace(path=f"/{name}")
        url = here._replace(netloc=f"{self.owner}:secret@{here.hostname}:{here.port}").geturl()
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name} OWNER {self.owner} TEMPLATE {template}")
            yield Shared(here.geturl(), self.owner, self.other, url)
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def server(postgres_url: str) -> Iterator[Server]:
    tag = uuid4().hex[:12]
    found = Server(
        urlsplit(postgres_url)._replace(path="/postgres").geturl(), f"owner_{tag}", f"other_{tag}", f"earlier_{tag}"
    )
    with psycopg.connect(found.url, autocommit=True) as admin:
        for role in (found.owner, found.other):
            admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        with found.database() as made:
            as_the_release_before(made.url)
            name = urlsplit(made.url).path.removeprefix("/")
            admin.execute(f"CREATE DATABASE {found.earlier} OWNER {found.owner} TEMPLATE {name}")
        yield found
        admin.execute(f"DROP DATABASE {found.earlier} WITH (FORCE)")
        admin.execute(f"DROP ROLE {found.owner}, {found.other}")


@pytest.fixture
def shared(server: Server) -> Iterator[Shared]:
    """Without Weir."""
    with server.database() as shared:
        yield shared


@pytest.fixture
def earlier(server: Server) -> Iterator[Shared]:
    """With what the release before made in `public`."""
    with server.database(server.earlier) as shared:
        yield shared


@contextmanager
def in_public(url: str) -> Iterator[Config]:
    """What Alembic works on, in the schema of the release before."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    with engine.begin() as connection:
        config.attributes.update(connection=connection, schema="public")
        yield config


def as_the_release_before(url: str, revision: str = LAST_IN_PUBLIC) -> None:
    """An installation in `public`, all of which the reader sees."""
    with in_public(url) as config:
        command.upgrade(config, revision)
    with psycopg.connect(url) as session:
        for schema in ("public", "catalog"):
            session.execute(f"GRANT USAGE ON SCHEMA {schema} TO {READER}")
            session.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {READER}")


SAME_NAMES = tuple(name for name in OWN if name != "settled_stragglers")


@pytest.mark.parametrize("whose", ["owner", "other"])
def test_a_new_installation_ignores_foreign_tables_of_the_same_names(
    shared: Shared, whose: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shared.make("public", *SAME_NAMES, "crm", owner=getattr(shared, whose))
    migrate(shared.url)
    migrate(shared.url)

    assert shared.is_untouched(*SAME_NAMES, "crm")
    assert shared.names("weir") == set(OWN)
    assert shared.shown_to_reader("public") == set()
    assert shared.shown_to_reader("weir") == set(SAME_NAMES) - set(SECRET)
    assert schema_is_current(shared.url)

    Ownership.take("billing", shared.url, {"of": "Weir"}).close()
    assert shared.rows("SELECT job, config FROM weir.jobs") == [("billing", {"of": "Weir"})]
    variables = {"WEIR_POSTGRES_URL": shared.url, "WEIR_KAFKA_BOOTSTRAP": "nobody:1", "WEIR_TABLES": str(tmp_path)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for words in ("meters", "sessions", "stragglers", "corrections", "types", "rules", "usage --window PT1H"):
        shown = CliRunner().invoke(app, words.split())
        assert (shown.exit_code, "theirs" in shown.output) == (0, False), (words, shown.output, shown.exception)
    assert read_accounts(Backend(Settings.of(variables))).names == ()


def test_a_foreign_table_beside_the_catalog_neither_stops_a_migration_nor_is_shown(shared: Shared) -> None:
    migrate(shared.url)
    shared.make("catalog", "crm", owner=shared.other)
    shared.make("catalog", "mine", owner=shared.owner)
    shared.make("weir", "mine", owner=shared.owner)
    migrate(shared.url)
    assert shared.shown_to_reader("catalog") == set(CATALOG)
    assert shared.shown_to_reader("weir") == set(SAME_NAMES) - set(SECRET)


WRITE = "INSERT INTO exits (job, how, reason) VALUES ('x', 'crashed', %s)"


@dataclass
class EarlierDriver(threading.Thread):
    """Sessions of the release before: no search_path, no schema in its statements; a lost one is taken up again."""

    url: str
    written: list[int] = field(default_factory=list)
    errors: list[psycopg.Error] = field(default_factory=list)
    sessions: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            try:
                with psycopg.connect(self.url, autocommit=True, application_name="weir billing") as session:
                    self.sessions += 1
                    while not self.stop.is_set():
                        with session.transaction():
                            session.execute("SELECT epoch FROM jobs WHERE job = 'billing' FOR SHARE")
                            number += 1
                            session.execute(
                                "INSERT INTO exits (job, how, reason) VALUES ('x', 'crashed', %s)", [number]
                            )
                            session.execute("UPDATE positions SET next_position = next_position + 1")
                        self.written.append(number)
                        time.sleep(0.002)
            except psycopg.Error as error:
                if not database_is_unavailable(error):
                    self.errors.append(error)
                    return


@contextmanager
def traffic(url: str) -> Iterator[list[EarlierDriver]]:
    drivers = [EarlierDriver(url) for _ in range(2)]
    for driver in drivers:
        driver.start()
    try:
        yield drivers
    finally:
        for driver in drivers:
            driver.stop.set()
        for driver in drivers:
            driver.join(timeout=60)


def until_more_is_written(drivers: list[EarlierDriver], rows: int) -> None:
    wanted = [len(driver.written) + rows for driver in drivers]
    deadline = time.monotonic() + 120
    while any(len(driver.written) < count for driver, count in zip(drivers, wanted, strict=True)):
        if time.monotonic() > deadline or any(driver.errors for driver in drivers):
            raise AssertionError([driver.errors for driver in drivers])
        time.sleep(0.01)


def test_an_installation_is_moved_under_the_traffic_of_drivers_of_the_release_before(earlier: Shared) -> None:
    earlier.make("public", "crm", "orders", owner=earlier.other)
    earlier.make("public", "invoices", owner=earlier.owner)
    with psycopg.connect(earlier.url) as before:
        before.execute(
            "INSERT INTO jobs (job, epoch, owner_pid, owner_started_at, started_at, config, state)"
            " VALUES ('billing', 7, 1, now(), now(), %s, 'running')",
            [Jsonb({})],
        )
        before.execute("INSERT INTO positions (job, input, next_position) VALUES ('billing', 'usage', 1)")
        before.execute(
            "INSERT INTO usage_windows (account, meter, window_start, window_end, quantity)"
            " VALUES ('a', 'requests', now(), now() + interval '1 minute', 5)"
        )
        before.execute("INSERT INTO catalog.plans (plan, name) VALUES ('p', 'P')")
        # As the migration of that release did.
        before.execute(f"GRANT SELECT ON public.invoices TO {READER}")
    with traffic(earlier.url) as drivers:
        until_more_is_written(drivers, 50)
        migrate(earlier.url)
        assert schema_is_current(earlier.url)
        until_more_is_written(drivers, 50)
    assert [driver.errors for driver in drivers] == [[], []]

    written = sum(len(driver.written) for driver in drivers)
    # What was under way when a session ended may have been committed, without an answer.
    lost_answers = sum(driver.sessions - 1 for driver in drivers)
    ((stored, position),) = earlier.rows(
        "SELECT (SELECT count(*) FROM weir.exits), (SELECT next_position - 1 FROM weir.positions)"
    )
    assert stored == position
    assert written <= stored <= written + lost_answers
    assert earlier.rows("SELECT job, epoch FROM weir.jobs") == [("billing", 7)]
    assert earlier.rows("SELECT account, quantity FROM weir.usage_windows") == [("a", 5)]
    assert earlier.rows("SELECT plan FROM catalog.plans") == [("p",)]

    assert earlier.names("weir") == set(OWN)
    assert earlier.names("public") == {"crm", "orders", "invoices"}
    assert earlier.is_untouched("crm", "orders", "invoices")
    assert earlier.shown_to_reader("public") == set()
    assert earlier.shown_to_reader("weir") == set(SAME_NAMES) - set(SECRET)


def test_tables_named_without_a_schema_are_found_after_the_move(earlier: Shared) -> None:
    login = f"login_{uuid4().hex[:12]}"
    reader = earlier.url.replace(f"{earlier.owner}:secret", f"{login}:secret")
    with psycopg.connect(earlier.admin, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'secret' IN ROLE {READER}")
        admin.execute(f"GRANT SELECT ON public.audits TO {earlier.other}")
        name = admin.info.dbname
        admin.execute(f"ALTER ROLE {earlier.other} IN DATABASE {name} SET search_path = crm, public")
    try:
        # An ordinary role may set its own search_path only; a superuser those of all.
        migrate(earlier.admin)
        with psycopg.connect(earlier.url) as owner:
            assert owner.execute("SHOW search_path").fetchone() == ('"$user", weir, public',)
            assert owner.execute("SELECT count(*) FROM usage_windows").fetchone() == (0,)
        with psycopg.connect(reader) as session:
            assert session.execute("SHOW search_path").fetchone() == ('"$user", weir, public',)
            assert session.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
        with psycopg.connect(earlier.url.replace(earlier.owner, earlier.other)) as other:
            assert other.execute("SHOW search_path").fetchone() == ("crm, weir, public",)
            assert other.execute("SELECT count(*) FROM audits").fetchone() == (0,)
    finally:
        with psycopg.connect(earlier.admin, autocommit=True) as admin:
            admin.execute(f"DROP ROLE {login}")


@pytest.mark.parametrize("revision", ["0001", "0021"])
def test_an_upgrade_from_any_release_leaves_nothing_of_weir_in_public(shared: Shared, revision: str) -> None:
    as_the_release_before(shared.url, revision)
    # Names of tables of later revisions are others' until then.
    others = sorted(set(SAME_NAMES) - set(made_by(revision)))
    shared.make("public", *others, owner=shared.owner)
    migrate(shared.url)
    assert shared.names("weir") == set(OWN)
    assert shared.names("public") == set(others)
    assert shared.is_untouched(*others)
    functions = "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    assert shared.rows(functions) == []


def test_the_lists_of_relations_are_what_the_migrations_make(shared: Shared) -> None:
    functions = "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    with in_public(shared.url) as config:
        connection = config.attributes["connection"]
        for revision in (*EARLIER, LAST_IN_PUBLIC):
            command.upgrade(config, revision)
            names = connection.exec_driver_sql(RELATIONS, ("public",)).scalars()
            assert set(names) == set(made_by(revision)), revision
            found = [name.replace(",", ", ") for name in connection.exec_driver_sql(functions).scalars()]
            assert found == list(functions_made_by(revision)), revision
    migrate(shared.url)
    assert (shared.names("weir"), shared.names("catalog")) == (set(OWN), set(CATALOG))
    assert shared.names("public") == set()


def test_no_function_depends_on_the_search_path_of_its_caller(shared: Shared) -> None:
    migrate(in_schema(shared.url, "metering"))
    statement = """
        SELECT oid::regprocedure::text, prosqlbody IS NOT NULL OR proconfig::text LIKE '%%search_path=%%',
               coalesce(prosrc ~ %s, false) FROM pg_proc
        WHERE pronamespace = ANY (ARRAY['metering', 'catalog']::regnamespace[])
    """
    by_schema = rf"\m(public|weir)\.({'|'.join(OWN)})\M"
    found = shared.rows(statement, by_schema)
    assert [name for name, is_bound, names_a_schema in found if not is_bound or names_a_schema] == []
    with psycopg.connect(shared.url) as session:
        session.execute("SET search_path = pg_catalog")
        assert session.execute("SELECT * FROM metering.usage_spans(null, null)").fetchall() == []


def test_another_schema_is_weirs_where_it_is_named(earlier: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    url = in_schema(earlier.url, "metering")
    migrate(url)
    assert earlier.names("metering") == set(OWN)
    assert earlier.names("public") == set()
    assert schema_is_current(url)
    with Session.to(url, "weir test", options="-c statement_timeout=5s") as session:
        assert session.execute("SHOW search_path").fetchone() == ("metering",)
        assert session.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    with pytest.raises(Refused, match="in the schema metering, and not in weir: set WEIR_POSTGRES_SCHEMA to metering"):
        migrate(earlier.url)
    assert earlier.rows("SELECT to_regnamespace('weir')") == [(None,)]


def test_another_applications_schema_catalog_is_refused(shared: Shared) -> None:
    with psycopg.connect(shared.url) as session:
        session.execute("CREATE SCHEMA catalog")
    with pytest.raises(Refused, match="a schema catalog that Weir did not make"):
        migrate(shared.url)
    assert shared.rows("SELECT to_regnamespace('weir')") == [(None,)]


@pytest.mark.parametrize("is_there_already", [False, True])
def test_a_schema_whose_names_are_taken_is_refused(
    shared: Shared, request: pytest.FixtureRequest, is_there_already: bool
) -> None:
    if is_there_already:
        shared = request.getfixturevalue("earlier")
    with psycopg.connect(shared.url) as session:
        session.execute("CREATE SCHEMA weir")
    shared.make("weir", "jobs", owner=shared.other)
    with pytest.raises(Refused, match=r"\(jobs\): name another schema with WEIR_POSTGRES_SCHEMA"):
        migrate(shared.url)
    assert shared.names("weir") == {"jobs"}
    assert ("jobs" in shared.names("public")) is is_there_already


OTHERS = """
CREATE FUNCTION {schema}.of_another() RETURNS int LANGUAGE sql SET search_path = public AS 'SELECT 1';
CREATE FUNCTION {schema}.of_an_extension() RETURNS int LANGUAGE sql SET search_path = public AS 'SELECT 1';
CREATE FUNCTION {schema}.without_a_path() RETURNS int LANGUAGE sql SET search_path = '' AS 'SELECT 1';
ALTER FUNCTION {schema}.of_an_extension() OWNER TO {owner};
ALTER FUNCTION {schema}.without_a_path() OWNER TO {owner};
ALTER EXTENSION plpgsql ADD FUNCTION {schema}.of_an_extension();
"""
THEIR_PATHS = """
SELECT proname, proconfig FROM pg_proc WHERE proname IN ('of_another', 'of_an_extension', 'without_a_path') ORDER BY 1
"""


@pytest.mark.parametrize("schema", ["weir", "catalog"])
def test_a_migration_leaves_functions_of_others_beside_its_own_as_they_are(shared: Shared, schema: str) -> None:
    """Migration 0144 changes the search path of every function that Weir has."""
    with migrator(shared.url) as config:
        command.upgrade(config, "0141")
    with psycopg.connect(shared.admin) as admin:
        admin.execute(OTHERS.format(schema=schema, owner=shared.owner).encode())
    before = shared.rows(THEIR_PATHS)
    migrate(shared.url)
    assert shared.rows(THEIR_PATHS) == before
    ((paths,),) = shared.rows("SELECT proconfig FROM pg_proc WHERE proname = 'pool_parts'")
    assert paths == ["search_path=pg_catalog, pg_temp"]


def test_a_role_without_the_right_to_create_schemas_uses_an_existing_one(
    earlier: Shared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(earlier.admin, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {admin.info.dbname} OWNER TO {admin.info.user}")
    asked = f"CREATE SCHEMA weir AUTHORIZATION {earlier.owner}"
    monkeypatch.setenv("WEIR_POSTGRES_URL", earlier.url)
    with pytest.raises(SystemExit) as ended:
        migrate_command()
    assert ended.value.code == ExitStatus.BAD_CONFIGURATION
    assert asked in capsys.readouterr().err
    with psycopg.connect(earlier.admin, autocommit=True) as admin:
        admin.execute(asked)
    migrate_command()
    assert earlier.names("weir") == set(OWN)


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "moved"])
def test_a_schema_without_the_right_to_create_tables_is_refused_with_the_grant(server: Server, *, is_new: bool) -> None:
    with server.database("template1" if is_new else server.earlier) as shared:
        with psycopg.connect(shared.admin) as admin:
            admin.execute("CREATE SCHEMA weir")
        with pytest.raises(Refused, match=f"ALTER SCHEMA weir OWNER TO {shared.owner}"):
            migrate(shared.url)
        assert not shared.names("weir")


def test_a_locked_table_stops_the_move_and_nothing_is_moved(earlier: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_schema, "move", partial(move.move, lock_timeout="50ms", deadline_seconds=0.3))
    with psycopg.connect(earlier.url) as somebody, psycopg.connect(earlier.url, autocommit=True) as driver:
        somebody.execute("SELECT count(*) FROM audits")
        with pytest.raises(Refused, match="had a table of Weir's in use"):
            migrate(earlier.url)
        assert earlier.names("public") == set(made_by("0034"))
        assert driver.execute("SELECT count(*) FROM audits").fetchone() == (0,)
        somebody.rollback()
        migrate(earlier.url)
    assert earlier.names("weir") == set(OWN)


def test_tables_of_another_application_are_not_taken_for_weirs(shared: Shared) -> None:
    """One that uses Alembic, too, and has every name; even with a revision that Weir has."""
    shared.make("public", *SAME_NAMES, owner=shared.owner)
    with psycopg.connect(shared.url) as session:
        session.execute("DROP TABLE public.alembic_version")
        session.execute("CREATE TABLE public.alembic_version AS SELECT '0034' AS version_num")
    migrate(shared.url)
    assert shared.names("weir") == set(OWN)
    assert shared.is_untouched(*(name for name in SAME_NAMES if name != "alembic_version"))
    assert shared.rows("SELECT * FROM public.alembic_version") == [("0034",)]


def test_tables_of_other_owners_are_not_moved(earlier: Shared) -> None:
    with psycopg.connect(earlier.admin, autocommit=True) as admin:
        admin.execute(f"GRANT CREATE ON DATABASE {admin.info.dbname} TO {earlier.other}")
        admin.execute(f"GRANT SELECT ON public.alembic_version TO {earlier.other}")
    with pytest.raises(Refused, match=f"belong to {earlier.owner}, and only their owner may move them"):
        migrate(earlier.url.replace(earlier.owner, earlier.other))
    assert earlier.names("public") == set(made_by("0034"))


def test_sessions_that_a_pooler_lets_begin_elsewhere_are_refused(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(shared.url)
    shared.make("public", "jobs", owner=shared.other)
    connect = psycopg.connect

    def without_options(url: str, **more: Any) -> psycopg.Connection[Any]:
        return connect(url.partition("?")[0], **more)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg, "connect", without_options)
        with pytest.raises(Refused, match="sessions begin in the schema public"):
            schema_is_current(shared.url)
        with connect(shared.admin, autocommit=True) as admin, suppress(psycopg.Error):
            admin.execute(f"ALTER ROLE {shared.owner} IN DATABASE {admin.info.dbname} SET search_path = weir, public")
        assert schema_is_current(shared.url)


@pytest.mark.parametrize("is_first", [True, False], ids=["moved", "migrated again"])
def test_sql_in_the_path_of_a_role_does_not_run_with_the_rights_of_the_migrating_role(
    earlier: Shared, *, is_first: bool
) -> None:
    if not is_first:
        migrate(earlier.admin)
    database = urlsplit(earlier.admin).path.removeprefix("/")
    # No blank ends this name, so Postgres takes it for one; any role may set its own path to it.
    path = f"mine,public;ALTER/**/ROLE/**/{READER}/**/CREATEDB"
    with psycopg.connect(earlier.admin) as session:
        session.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(READER)))
        session.execute("SELECT set_config('search_path', %s, false)", [path])
        session.execute(f"ALTER ROLE {READER} IN DATABASE {database} SET search_path FROM CURRENT")
    try:
        migrate(earlier.admin)
        assert earlier.rows("SELECT rolcreatedb FROM pg_roles WHERE rolname = %s", READER) == [(False,)]
    finally:
        with psycopg.connect(earlier.admin) as session:
            session.execute(f"ALTER ROLE {READER} NOCREATEDB")


def test_a_search_path_of_a_role_keeps_its_other_schemas(earlier: Shared) -> None:
    database = urlsplit(earlier.admin).path.removeprefix("/")
    with psycopg.connect(earlier.admin) as session:
        session.execute(
            f'ALTER ROLE {earlier.owner} IN DATABASE {database} SET search_path = "$user", "Of, theirs", PUBLIC'
        )
    migrate(earlier.url)
    with psycopg.connect(earlier.url) as session:
        assert session.execute("SHOW search_path").fetchone() == ('"$user", "Of, theirs", weir, public',)


@pytest.mark.parametrize("path", [None, "{role}, public"], ids=["default", "set"])
def test_an_application_that_also_reads_a_table_of_weirs_still_finds_its_own_in_its_own_schema(
    earlier: Shared, path: str | None
) -> None:
    """Of the same name as one of Weir's, and of another."""
    with psycopg.connect(earlier.admin, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA AUTHORIZATION {earlier.other}")
        admin.execute(f"GRANT SELECT ON public.audits TO {earlier.other}")
        if path:
            in_database = f"ALTER ROLE {earlier.other} IN DATABASE {admin.info.dbname}"
            admin.execute(f"{in_database} SET search_path = {path.format(role=earlier.other)}")
    earlier.make(earlier.other, "sessions", "orders", owner=earlier.other)
    migrate(earlier.admin)
    with psycopg.connect(earlier.url.replace(earlier.owner, earlier.other)) as other:
        assert other.execute("SELECT count(*) FROM audits").fetchone() == (0,)
        for table in ("sessions", "orders"):
            assert other.execute(f"SELECT secret FROM {table}").fetchall() == [("theirs",)]
