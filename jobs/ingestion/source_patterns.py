"""Which sources match a list of patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

from jobs.ingestion.rules import glob_expression


def is_listed(sources: pl.Series, patterns: Iterable[str]) -> pl.Series:
    """For each source whether any of the patterns matches it. Each distinct source is looked at once."""
    listed = tuple(patterns)
    distinct = sources.drop_nulls().unique() if listed else sources.clear()
    matches = re.compile(glob_expression(listed)).match
    return sources.is_in([source for source in distinct if matches(source)]).fill_null(value=False)
