"""Files beside those of a table that its log does not name: what tasks exchanged, or wrote and nobody committed."""

from __future__ import annotations

import os
import time
from datetime import date, timedelta
from pathlib import Path

from deltalake import DeltaTable

from jobs.runtime.delta.compaction import compact
from jobs.streams import Table

TWO_DAYS_S = 2 * 86_400


def orphans(tables: Path | str, table: Table) -> set[str]:
    """Their paths below the table."""
    folder = Path(tables) / table
    live = {Path(uri.removeprefix("file://")) for uri in DeltaTable(str(folder)).file_uris()}
    every = {path for path in folder.rglob("*") if path.is_file() and "_delta_log" not in path.parts}
    return {str(path.relative_to(folder)) for path in every - live}


def let_grow_old(tables: Path | str, table: Table) -> None:
    """Let two days pass for them."""
    for name in orphans(tables, table):
        os.utime(Path(tables) / table / name, times=(time.time() - TWO_DAYS_S,) * 2)


def remove_orphans(tables: Path | str, table: Table, before: date) -> None:
    """As `weir compact` does two days later, and not at once: they may be of a batch that runs."""
    found = orphans(tables, table)
    compact(str(tables), table, before=before, keep=timedelta(0))
    assert orphans(tables, table) == found
    let_grow_old(tables, table)
    compact(str(tables), table, before=before, keep=timedelta(0))
    assert not orphans(tables, table)
