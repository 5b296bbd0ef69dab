"""The last number of each issuer's invoices, beside the tables: a database of an older backup does not know it.

Without this a restored database would give the numbers of lost invoices to others. It is written after an invoice is
issued, so a crash in between leaves an earlier number, which refuses nothing until the next close writes the last one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from urllib.parse import quote

import obstore
import psycopg

from jobs.close.store import last_number
from jobs.runtime.delta.object_store import store_of
from jobs.runtime.errors import Refused

FOLDER = "_invoices"


class InvoiceSeries:
    """That of one issuer, in the store of the tables."""

    def __init__(self, tables: str, issuer: str) -> None:
        self._store, self._issuer = store_of(tables, os.environ), issuer
        self._folder = f"{FOLDER}/{quote(issuer, safe='')}"

    def refuse_older(self, database: psycopg.Connection[dict[str, object]], *, keeps: bool) -> None:
        """Raises Refused where invoices were issued that the database does not know.

        With `keeps`, those are noted that it knows and that were not noted: by an earlier release, or before a crash.
        """
        issued, known = max(self._numbers(), default=0), last_number(database, self._issuer)
        if issued > known:
            raise Refused(
                f"{self._issuer} has issued invoice number {issued}, but the database knows them only up to {known}: "
                "it is of an older backup, and would give later numbers a second time; restore a newer backup, "
                f"or, if nobody got those invoices, remove {self._folder} beside the tables"
            )
        if keeps and issued < known:
            self.note(known)

    def note(self, number: int) -> None:
        """Invoices up to this number were issued."""
        obstore.put(self._store, f"{self._folder}/{number}", b"", mode="overwrite")
        for earlier in self._numbers():
            if earlier < number:
                # A close that runs at the same time may have removed it.
                with suppress(FileNotFoundError):
                    obstore.delete(self._store, f"{self._folder}/{earlier}")

    def _numbers(self) -> list[int]:
        names = [
            entry["path"].rpartition("/")[2]
            for listed in obstore.list(self._store, f"{self._folder}/")
            for entry in listed
        ]
        return [int(name) for name in names if name.isdecimal()]
