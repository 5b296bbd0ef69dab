"""Whether a Delta log is still the one that a handle has read.

If the log is rolled back below the handle's version, or recreated, the handle does not notice: it sees no newer
version for a while, and then those of another history.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

import obstore
from deltalake import DeltaTable
from obstore.store import LocalStore, ObjectStore

from jobs.runtime.delta.object_store import store_of

MAX_COMMITS = 100
"""That are read one by one; of more the table is opened."""


def store_that_is_there(path: str) -> ObjectStore:
    """The store of a table's files. Unlike `store_of` it makes no folder."""
    return store_of(path, os.environ) if "://" in path else LocalStore(path)


def actions_of(store: ObjectStore, version: int) -> list[Mapping[str, Any]]:
    """The actions of the commit that made a version. Raises FileNotFoundError where the log has none."""
    log = obstore.get(store, f"_delta_log/{version:020d}.json").bytes().to_bytes()
    return [json.loads(line) for line in log.splitlines()]


class Log(Enum):
    """What became of the log since a handle read it."""

    SAME = auto()
    GONE = auto()
    REPLACED = auto()


class KnownCommit:
    """The newest commit that a handle of a table has read, as an object of the store."""

    def __init__(self, path: str) -> None:
        self._store = store_that_is_there(path)
        self._version = -1
        self._tag: str | None = None

    def hold(self, table: DeltaTable) -> None:
        """From now on it is the newest commit that `table` has read."""
        self.hold_version(int(table.version()))

    def hold_version(self, version: int) -> None:
        """From now on it is the commit that made this version."""
        if version != self._version or self._tag is None:
            self._version, self._tag = version, self._look(version)

    @property
    def version(self) -> int:
        """The version that it made; -1 before any is held."""
        return self._version

    def holds(self, version: int) -> bool:
        """Whether it is the commit that made this version, and was there when it was looked at."""
        return version == self._version and self._tag is not None

    def log(self) -> Log:
        """Whether the held commit is still the object that it was; a log that was cleaned up may lack it, too."""
        if self._tag is None:
            return Log.SAME
        found = self._look(self._version)
        if found is None:
            return Log.GONE
        return Log.SAME if found == self._tag else Log.REPLACED

    def commit(self, version: int) -> list[Mapping[str, Any]] | None:
        """The actions of the commit that made a version; None where the log has none."""
        try:
            return actions_of(self._store, version)
        except FileNotFoundError:
            return None

    def has(self, version: int) -> bool:
        """Whether the log still holds the commit that made `version`."""
        return self._look(version) is not None

    def _look(self, version: int) -> str | None:
        try:
            meta = obstore.head(self._store, f"_delta_log/{version:020d}.json")
        except FileNotFoundError:
            return None
        return meta["e_tag"] or f"{meta['last_modified']} {meta['size']}"
