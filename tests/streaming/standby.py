"""A standby of the chain's database, which takes its place: what somebody runs for whom a lost machine is no loss."""

from __future__ import annotations

import shutil
import subprocess

import psycopg

from laptop import database
from laptop.ports import free_ports
from tests.streaming.capturing import Chain
from tests.waiting import wait_until

_NAME = "standby"
_BEHIND = "SELECT count(*) FROM pg_stat_replication WHERE application_name = %s AND replay_lsn >= %s::pg_lsn"


class Standby:
    """Follows the log of what is primary now, and knows nothing of slots."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._folder = chain.folder / _NAME
        (self._port,) = free_ports(1)
        self._folder.mkdir()
        address = f"{database.database_url(chain.folder / 'postgres', chain.database_port)}?application_name={_NAME}"
        copy = ["--pgdata", str(self._folder / "data"), "--write-recovery-conf", "--checkpoint", "fast"]
        command = [*database.server_program("pg_basebackup"), "--dbname", address, *copy]
        subprocess.run(command, check=True, timeout=60)
        shutil.copy(chain.folder / "postgres" / "password", self._folder)
        self._start(self._port)

    def _start(self, port: int) -> None:
        self._chain.start(_NAME, database.server_command(self._folder, port))
        wait_until(lambda: database.ensure_database(self._folder, port), "the standby answering")

    def until_it_has_all(self) -> None:
        """Whatever the primary has committed until now."""
        with psycopg.connect(self._chain.url, autocommit=True) as sql:
            reached = sql.execute("SELECT pg_current_wal_lsn()").fetchone()
            assert reached is not None

            def has_all() -> bool:
                row = sql.execute(_BEHIND, [_NAME, reached[0]]).fetchone()
                return row is not None and row[0] == 1

            wait_until(has_all, "the standby having it")

    def is_cut_off(self) -> None:
        """It gets no more from now on."""
        self._chain.kill(_NAME)

    def takes_over(self) -> None:
        """The primary is lost, and this is reached at its address instead."""
        chain = self._chain
        chain.kill("database")
        if _NAME in chain.processes:
            chain.kill(_NAME)
        (chain.folder / "postgres").rename(chain.folder / f"lost-{self._port}")
        self._folder.rename(chain.folder / "postgres")
        chain.start_database()
        with psycopg.connect(chain.url, autocommit=True) as sql:
            assert sql.execute("SELECT pg_promote()").fetchone() == (True,)
            assert sql.execute("SELECT FROM pg_replication_slots").fetchall() == []
