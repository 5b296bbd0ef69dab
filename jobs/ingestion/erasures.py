"""Events of people who were forgotten are stored already erased, however late they come (`weir forget`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl
import psycopg
import structlog

from jobs.journal.erasing import CHANGED, READ, TRANSACTION, erased
from jobs.runtime.errors import Refused
from jobs.runtime.postgres.ownership import Ownership
from metering.erasure import KEYS_VARIABLE, LOST, Erased, People, UnknownKey, keys_of, lost_keys_of

log = structlog.get_logger()

_READ = "SELECT erasure, account, person, key_id FROM erasures ORDER BY erasure"


_PUBLISH = """
UPDATE jobs SET config = config || jsonb_build_object('erasure_keys', %s::text[]) WHERE job = %s AND epoch = %s
"""


def publish_keys(ownership: Ownership, secrets: str) -> None:
    """Store the ids of the keys that this driver has, so that `weir forget` uses no other one.

    An unfit key is none: it is refused once somebody is forgotten.
    """
    try:
        ids = [key.id for key in keys_of(secrets)]
    except ValueError:
        ids = []
    ownership.connection.execute(_PUBLISH, [ids, ownership.job, ownership.epoch])


def people_of(connection: psycopg.Connection[Any], secrets: str) -> People:
    """Those who were forgotten. Raises Refused without the key of an erasure, or with an unfit one."""
    rows = [Erased(*row) for row in connection.execute(_READ).fetchall()]
    try:
        return People(rows, keys_of(secrets), lost_keys_of(secrets))
    except UnknownKey as unknown:
        raise Refused(
            f"somebody was forgotten by `weir forget` with the key {unknown.args[0]}, which {KEYS_VARIABLE} does not "
            "have: later events of this person would be stored as they are. Give the secret, beside newer ones; if "
            f"nobody has it any more, accept that with {LOST}{unknown.args[0]} among them, and forget the person again"
        ) from None
    except ValueError as unfit:
        raise Refused(f"{KEYS_VARIABLE}: {unfit}") from None


class Erasures:
    """The erasures that a driver follows. Costs nothing while there is none."""

    def __init__(self, secrets: str, catalog: Iterable[str]) -> None:
        self._secrets, self._catalog = secrets, tuple(catalog)
        self._people = People((), ())
        self.newest = 0

    def follow(self, newest: int, connection: psycopg.Connection[Any]) -> None:
        """Read them where there are further ones than are known here. Raises Refused as `people_of`."""
        if newest > self.newest:
            self._people = people_of(connection, self._secrets)
            self.newest = newest
            log.info("follows erasures", newest=newest)
            if lost := self._people.unrecognised:
                log.warning("later events of people whose key is lost are stored as they are", erasures=lost)

    def transactions(self, followed: int | None) -> dict[str, int]:
        """What a commit says of the erasures that its rows follow, where the journal has not said it."""
        return {TRANSACTION: self.newest} if self.newest > (followed or 0) else {}

    @property
    def accounts(self) -> list[str]:
        """Those of which somebody was forgotten."""
        return self._people.accounts

    def erase(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows for the journal, of which those of people who were forgotten lose what names them."""
        if not self._people.accounts:
            return rows
        return with_changes(rows, self.changes(rows.select(read_of(rows.columns))))

    def changes(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Of rows of the journal (`read_of`) what must be different (`jobs.journal.erasing.erased`)."""
        return erased(rows, self._people, self._catalog)


def read_of(names: Iterable[str]) -> list[str]:
    """Of these columns those by which rows of people who were forgotten are found."""
    given = set(names)
    return [name for name in READ if name in given]


def with_changes(rows: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Rows for the journal with what must be different of them (`Erasures.changes`)."""
    if found.is_empty():
        return rows
    changed = [name for name in CHANGED if name in rows.columns]
    is_erased = pl.col("lsn").is_in(found["lsn"].implode())
    new = found.select(pl.col("lsn").cast(rows.schema["lsn"]), pl.col(changed).name.prefix("new "))
    joined = rows.join(new, on="lsn", how="left", maintain_order="left")
    kinds = rows.schema
    return joined.with_columns(
        pl.when(is_erased).then(pl.col(f"new {name}").cast(kinds[name])).otherwise(name).alias(name) for name in changed
    ).select(rows.columns)
