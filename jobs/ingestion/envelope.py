"""The rules of CloudEvents 1.0 for attributes, and Weir's for its own extensions, checked on columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import polars as pl

from jobs.ingestion import rules
from jobs.ingestion.paths import NUMBER
from jobs.ingestion.rfc3339 import instants_us
from jobs.ingestion.violations import Rule, is_misread
from metering.contracts.model import Kind
from metering.limits import MAX_NAME_BYTES
from metering.vocabulary import Reason

NAMES = {"id": "/id", "source": "/source", "type": "/type", "account": "/subject"}
NAMED = f"1 to {MAX_NAME_BYTES} bytes without control characters"
INSTANT = "RFC 3339, with an offset, such as 2026-11-25T18:00:00Z"


def attributes(read: pl.DataFrame) -> pl.DataFrame:
    """`read` (`Paths.schema`) with a column for each attribute; null where there is no usable value.

    Adds `id, source, type, account, occurred_us, sent_us` (microseconds since 1970), `sequence, source_epoch`,
    `is_receipt`: whether the receiver filled in its time, and `has_controls`: whether a name holds control characters.
    """
    names = [_name(pl.col(at)).alias(column) for column, at in NAMES.items()]
    sequence, epoch = pl.col("/sequence"), pl.col("/sourceepoch")
    is_digits = sequence.str.contains(rf"\A[0-9]{{1,{rules.MAX_SEQUENCE_DIGITS}}}\z")
    return read.with_columns(
        *names,
        instants_us(read["/time"]).alias("occurred_us"),
        instants_us(read["/senttime"]).alias("sent_us"),
        pl.coalesce(f"/sequence{NUMBER}", pl.when(is_digits).then(sequence).cast(pl.Int64)).alias("sequence"),
        pl.coalesce(pl.col(f"/sourceepoch{NUMBER}").cast(pl.String), _name(epoch)).alias("source_epoch"),
        is_receipt=pl.col(f"/{rules.TIME_SOURCE}").eq_missing(rules.RECEIPT),
        has_controls=pl.concat_str(*(pl.col(at) for at in NAMES.values()), ignore_nulls=True).str.contains(
            rules.ATTRIBUTE_CONTROLS
        ),
    )


@cache
def envelope_rules(*, any_misread: bool) -> Sequence[Rule]:
    """The rules over `attributes` with `needs_subject`, in the order in which the first broken one gives the reason."""

    def misread(at: str) -> pl.Expr:
        return is_misread(at) if any_misread else pl.lit(value=False)

    def is_bad(column: str) -> pl.Expr:
        return pl.col(column).is_null() | (pl.col("has_controls") & _has_controls(NAMES[column]))

    def rule(is_broken: pl.Expr, reason: Reason, at: str, allowed: str, wrong_type: str = "type is string") -> Rule:
        kind = None if allowed is INSTANT else Kind.TEXT
        return Rule(is_broken, reason, f"CloudEvents 1.0 {at}", allowed, at, pl.col(at), kind, wrong_type)

    def number_rule(is_broken: pl.Expr, at: str, allowed: str) -> Rule:
        written = pl.struct(at, f"{at}{NUMBER}")
        place, reason = f"CloudEvents 1.0 {at}", Reason.INVALID_SEQUENCE
        return Rule(is_broken, reason, place, allowed, at, written, Kind.INTEGER, wrong_type=allowed)

    has_subject = pl.col("/subject").is_not_null() | misread("/subject")
    sent, epoch = pl.col("/senttime").is_not_null() | misread("/senttime"), pl.col("/sourceepoch").is_not_null()
    number = pl.col("sequence")
    is_present = pl.col("/sequence").is_not_null() | misread("/sequence")
    no_sequence = (number.is_null() & is_present) | number.is_between(0, rules.MAX_SEQUENCE).not_().fill_null(
        value=False
    )
    no_epoch = pl.col("source_epoch").is_null() & (epoch | misread("/sourceepoch"))
    no_version = pl.col("/specversion").ne_missing(rules.SPECVERSION)
    no_time, no_senttime = pl.col("occurred_us").is_null(), pl.col("sent_us").is_null() & sent
    return (
        rule(no_version, Reason.INVALID_SPECVERSION, "/specversion", rules.SPECVERSION),
        rule(is_bad("id"), Reason.INVALID_ID, "/id", NAMED),
        rule(is_bad("source"), Reason.INVALID_SOURCE, "/source", NAMED),
        rule(is_bad("type"), Reason.INVALID_TYPE, "/type", NAMED),
        rule(is_bad("account") & has_subject, Reason.INVALID_SUBJECT, "/subject", NAMED),
        rule(pl.col("account").is_null() & pl.col("needs_subject"), Reason.MISSING_SUBJECT, "/subject", "required"),
        rule(no_time, Reason.INVALID_TIME, "/time", INSTANT, INSTANT),
        rule(no_senttime, Reason.INVALID_SENTTIME, "/senttime", INSTANT, INSTANT),
        number_rule(no_sequence, "/sequence", f"a whole number from 0 to {rules.MAX_SEQUENCE}"),
        number_rule(no_epoch, "/sourceepoch", f"a whole number, or 1 to {MAX_NAME_BYTES} bytes"),
    )


def _name(text: pl.Expr) -> pl.Expr:
    return pl.when(text.str.len_bytes().is_between(1, MAX_NAME_BYTES)).then(text)


def _has_controls(at: str) -> pl.Expr:
    return pl.col(at).str.contains(rules.ATTRIBUTE_CONTROLS).fill_null(value=False)
