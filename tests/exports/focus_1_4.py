"""The three files that FOCUS 1.4 has of a month."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from cli.reading import read_only
from jobs.exports.columns import Focus
from jobs.exports.files import destination_of
from jobs.exports.focus import FocusExport, export_focus
from jobs.exports.month import Seller
from jobs.exports.rows_file import FileFormat
from tests.exports.focus_rules import broken, broken_details
from tests.pipelines.closing import NOON

SELLER = Seller("Example Inc.", "Some Cloud", "Net 30")
Rows = list[dict[str, Any]]


class Files(NamedTuple):
    """The rows of each."""

    charges: Rows
    details: Rows
    periods: Rows


def exported(database: str, folder: Path, month: date, accounts: Sequence[str] = ()) -> Files:
    """A month in 1.4, whose rows must keep to the rules."""
    export = FocusExport(month, Focus.V1_4, FileFormat.PARQUET, SELLER, accounts)
    with read_only(database) as connection:
        done = export_focus(connection, destination_of(str(folder), {}), export, NOON, lambda _: None)
    found = Files(*(pq.read_table(folder / name).to_pylist() for name in (done.file, *done.others)))
    assert broken(found.charges) == {}
    assert broken_details(found.details, found.charges) == {}
    return found
