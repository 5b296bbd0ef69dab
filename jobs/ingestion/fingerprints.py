"""An event's identity and content as two stored numbers, compared with those of later events."""

from __future__ import annotations

from hashlib import blake2b, sha256

import numpy as np
import polars as pl

from jobs.ingestion.rules import RECEIPT, TIME_SOURCE
from jobs.journal.elements import place_in_event
from metering.contracts.model import Contract, Field, Kind

DIGEST = 2
"""The version of `contents`. 1 was a hash of Spark's, of the columns of that time. One more whenever it changes."""
IDENTITY_BYTES = 16


def identities(sources: pl.Series, ids: pl.Series) -> pl.Series:
    """16 bytes of each event's source and id; null where one is missing.

    Cut from SHA-256: nobody can make an event with another's identity and have that event rejected as a duplicate. The
    length of the source keeps ("a", "bc") apart from ("ab", "c").
    """
    named = pl.select(
        pl.concat_str(sources.str.len_bytes().cast(pl.String), pl.lit(":"), sources, ids).cast(pl.Binary)
    ).to_series()
    hashed = [None if name is None else sha256(name).digest()[:IDENTITY_BYTES] for name in named.to_list()]
    return pl.Series("identity", hashed, pl.Binary)


def element_identities(events: pl.DataFrame) -> pl.Series:
    """16 bytes of each event's source and id (columns), and of the place of its element (column `element`).

    The first element has the identity of its event: one that was taken whole, before its contract had elements, is
    found when it is sent again. No event can have an identity of the others: what that is made of begins with digits.
    """
    named = pl.col("source").str.len_bytes().cast(pl.String) + ":" + pl.col("source") + pl.col("id")
    place = place_in_event(pl.col("element"))
    prefix = pl.when(place > 1).then(pl.format("element {} of ", place)).otherwise(pl.lit(""))
    texts = events.select((prefix + named).cast(pl.Binary)).to_series().to_list()
    hashed = [None if text is None else sha256(text).digest()[:IDENTITY_BYTES] for text in texts]
    return pl.Series("identity", hashed, pl.Binary)


def contents(events: pl.DataFrame, contract: Contract | None) -> pl.Series:
    """64 bits of each event's content: its type, its subject, its time as written, and the fields of its contract.

    In: `Paths.schema`. Only fields that are present count, each with its path, so that a contract may gain further
    ones. What Weir does not read does not count, nor do the order of keys, white space and `senttime`; nor a time that
    the receiver filled in (`timesource`), which differs each time that the event is sent.
    """
    fields = contract.fields if contract is not None else ()
    is_receipt = pl.col(f"/{TIME_SOURCE}").eq_missing(RECEIPT)
    time = pl.when(is_receipt).then(pl.lit("")).otherwise("/time").alias("/time")
    parts = [texts.fill_null("") + "\0" for texts in (pl.col("/type"), pl.col("/subject"), time)]
    # No text can hold the separator: an event with U+0000 is rejected.
    parts += [pl.lit(f"{field.pointer}\0") + _written(field) + "\0" for field in sorted(fields, key=lambda f: f.path)]
    texts = events.select(pl.concat_str(parts, ignore_nulls=True).cast(pl.Binary)).to_series().to_list()
    hashed = b"".join([blake2b(text, digest_size=8).digest() for text in texts])
    return pl.Series("content_digest", np.frombuffer(hashed, "<i8"), pl.Int64)


def _written(field: Field) -> pl.Expr:
    """A value as the digest has it; null where there is none."""
    value = pl.col(field.pointer)
    if field.kind is Kind.TEXT:
        return pl.when(value != "").then(value)
    if field.kind is Kind.DOUBLE:
        # By its bits: the text of a double is not guaranteed to be stable. -0 is 0.
        return (value + 0.0).map_batches(_bits, return_dtype=pl.String)
    return value.cast(pl.String)


def _bits(values: pl.Series) -> pl.Series:
    bits = pl.Series(values.fill_null(0.0).to_numpy().view("<i8"))
    return bits.set(values.is_null(), None).cast(pl.String)
