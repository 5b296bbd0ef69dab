"""A server of Postgres for tests: nobody takes its power away, and nobody guesses its passwords."""

from __future__ import annotations

import psycopg
from alembic.config import Config
from alembic.script import ScriptDirectory
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict


def make_quick(url: str) -> None:
    """Let the server of `url` write nothing through, and a login derive its key in one round instead of 4,096.

    A session took 7 ms of CPU to begin, and takes 3: of the role of `url`, and of all that are made later. Postgres 15
    has no such setting, and its logins stay slow.
    """
    with psycopg.connect(url, autocommit=True) as server:
        has_rounds = server.info.server_version >= 160_000
        for setting in ("fsync = off", *(["scram_iterations = 1"] if has_rounds else [])):
            server.execute(f"ALTER SYSTEM SET {setting}".encode())
        server.execute("SELECT pg_reload_conf()")
    if not has_rounds:
        return
    # A new session: the old one may not have read the settings yet.
    with psycopg.connect(url, autocommit=True) as server:
        server.execute("SET scram_iterations = 1")
        role = conninfo_to_dict(url)
        server.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(str(role["user"])), role["password"]))


def read_migrations_once() -> None:
    """Let Alembic keep the scripts of a folder that it has read: a hundred files take 0.1 s of CPU at each question."""
    read = ScriptDirectory.from_config
    known: dict[str | None, ScriptDirectory] = {}

    def kept(config: Config) -> ScriptDirectory:
        folder = config.get_main_option("script_location")
        if folder not in known:
            known[folder] = read(config)
        return known[folder]

    ScriptDirectory.from_config = kept  # type: ignore[method-assign]
