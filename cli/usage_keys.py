"""Refuses what `weir usage` cannot group by."""

from __future__ import annotations

import typer

from jobs.queries.reading import Database
from jobs.queries.usage_keys import unknown_dimensions


def refuse_unknown(database: Database, dimensions: tuple[str, ...]) -> None:
    """Raises `typer.BadParameter` for a dimension that is neither configured now nor in any day."""
    unknown, known = unknown_dimensions(database, dimensions)
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: can only be any of {', '.join(known)}.")
