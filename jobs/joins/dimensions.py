"""The configured texts that usage rows have besides their own columns."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from jobs.joins.memory import text_of


def dimensions(names: Sequence[str]) -> pl.Expr:
    """Outcomes (`resolve`) → `dimensions`: a JSON object of those that are not null, by name; null where none is."""
    members_set = [pl.when(pl.col(text_of(name)).is_not_null()).then(_member(name)) for name in sorted(names)]
    if not members_set:
        return pl.lit(None, pl.String).alias("dimensions")
    members = pl.concat_str(members_set, separator=",", ignore_nulls=True)
    return pl.when(members != "").then(pl.concat_str(pl.lit("{"), members, pl.lit("}"))).alias("dimensions")


def _member(name: str) -> pl.Expr:
    return pl.struct(pl.col(text_of(name)).alias(name)).struct.json_encode().str.strip_prefix("{").str.strip_suffix("}")
