"""A Delta table that grows again as it once grew: its commits are copied one by one to where a measured job reads.

So every job is measured alone, on what the job before it really wrote.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from deltalake import DeltaTable

from jobs.runtime.delta.table import LSN
from jobs.streams import Table


class Recording:
    """The commits of `table` under `source`, in order."""

    def __init__(self, source: Path, table: Table) -> None:
        self._source = source / table
        self._table = table
        self._log = sorted((self._source / "_delta_log").glob("[0-9]*.json"))

    @property
    def versions(self) -> int:
        """How many commits there are."""
        return len(self._log)

    def next_lsn(self, version: int) -> int:
        """The lsn after the last row of a version."""
        return DeltaTable(str(self._source), version=version).transaction_version(LSN) or 1

    def copy(self, version: int, target: Path) -> int:
        """Commit one version to the same table under the folder `target`; gives the lsn after its last row."""
        commit = self._log[version]
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for path in (action["add"]["path"] for action in actions if "add" in action):
            file = target / self._table / path
            file.parent.mkdir(parents=True, exist_ok=True)
            _place(self._source / path, file)
        _place(commit, target / self._table / "_delta_log" / commit.name)
        return self.next_lsn(version)


def _place(source: Path, target: Path) -> None:
    """Copy a file so that nobody sees a part of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.part")
    shutil.copyfile(source, scratch)
    scratch.replace(target)
