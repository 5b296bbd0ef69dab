"""Versions of accounts: from when on each applies, and what it says of the account, for prices and for watches."""

from __future__ import annotations

import polars as pl

from jobs.settings.dimensions import TAG
from metering.price_attributes import ACCOUNT

BEGINNING_OF_TIME_US = -(2**63)


def begins_us() -> pl.Expr:
    """From when on a version applies, in microseconds; rows are in the order of account and lsn.

    An account's very first version applies from the beginning of time.
    """
    is_first = pl.int_range(pl.len()).over("account") == 0
    return pl.when(is_first).then(BEGINNING_OF_TIME_US).otherwise(pl.col("effective_from").dt.epoch("us"))


def attribute_of(name: str) -> pl.Expr:
    """The version's value of an attribute, such as `account.plan` or `account.tags.tier`; null where it has none."""
    column = name.removeprefix(ACCOUNT)
    if not column.startswith(TAG):
        return pl.col(column)
    tag = column.removeprefix(TAG)
    return pl.col("tags").str.json_decode(pl.Struct({tag: pl.String})).struct.field(tag)
