"""Checks as rows: `weir audit` prints them, and the table `audits` stores them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jobs.audit.check import Check

COLUMNS = ("check", "holds", "examined", "found", "corrected", "says")
"""As the table `audits` stores them for good."""
PRINTED = (*COLUMNS[:-1], "detail")
"""As they are printed."""
NOT_EXAMINED = {
    "I3": "only producers know what they produced; `weir compare` compares generated traffic with its truth",
}
Row = Mapping[str, Any]


def check_rows(checks: Iterable[Check]) -> list[Row]:
    """A row (COLUMNS) for each check, in the order of their numbers, also for checks that are not possible."""
    return sorted([*map(check_row, checks), *_not_examined()], key=lambda row: int(row["check"][1:]))


def check_row(check: Check) -> Row:
    """One check (COLUMNS)."""
    return {name: getattr(check, name) for name in COLUMNS}


def printed_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows (COLUMNS) as PRINTED."""
    for row in rows:
        yield {**{name: row[name] for name in COLUMNS[:-1]}, "detail": row["says"]}


def _not_examined() -> Iterator[Row]:
    for check, text in NOT_EXAMINED.items():
        yield check_row(Check(check, 0, 0, text))
