"""Events checked against the fields of their contract, on columns: which break which rule, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import polars as pl

from jobs.ingestion.violations import Rule, is_misread
from metering.contracts.model import Contract, Field, Kind, pointer
from metering.contracts.wording import holds
from metering.quantity_events import PATTERN
from metering.vocabulary import Family, Reason, Status

STATUS = "status"
"""The column with the status of a model's answer."""
REQUEST_ID = "request_id"
"""The column with the request id of an event."""
MAX_CONTRACTS = 512
"""How many have their expressions kept: making them takes longer than validating a few events."""


@lru_cache(MAX_CONTRACTS)
def rules_of(contract: Contract, *, any_misread: bool, has_quantities: bool = False) -> Sequence[Rule]:
    """The rules of a contract over `Paths.schema`, in the order in which the first broken one gives the reason.

    `any_misread`: whether a value of any event is of another kind than its contract says. `has_quantities`: whether any
    contract is of the family quantity; then a request id that could be that of such an event breaks a rule, but for a
    reversal, which takes it back.
    """
    rules = list(_object(contract, any_misread=any_misread))
    for field in contract.fields:
        rules += _of_field(contract, field, any_misread=any_misread)
        if has_quantities and field.column == REQUEST_ID and contract.family is not Family.REVERSAL:
            rules.append(_not_of_a_quantity(contract, field))
    return tuple(rules)


def _not_of_a_quantity(contract: Contract, field: Field) -> Rule:
    value, at = pl.col(field.pointer), field.pointer
    is_broken = value.str.contains(PATTERN).fill_null(value=False)
    text = f"not as the request id of an event of the family {Family.QUANTITY}"
    return Rule(
        is_broken, field.reason, f"{contract.type} {at}", text, at, value, field.kind, f"type is {holds(field)}"
    )


@lru_cache(MAX_CONTRACTS)
def fields_of(contract: Contract) -> Sequence[pl.Expr]:
    """The columns that the contract's events fill; a text that is empty, or longer than it may be, is none.

    An event of both families that does not say how the answer ended says that it was completed.
    """
    columns: dict[str, pl.Expr] = {}
    for field in contract.fields:
        value = pl.col(field.pointer)
        if field.max_bytes is not None:
            value = pl.when(value.str.len_bytes().is_between(1, field.max_bytes)).then(value)
        columns[field.column] = value
    requires_status = any(field.column == STATUS and field.is_required for field in contract.fields)
    if contract.family is Family.BOTH and not requires_status:
        columns[STATUS] = pl.coalesce(columns.get(STATUS, pl.lit(None, pl.String)), pl.lit(Status.COMPLETED.value))
    return tuple(value.alias(column) for column, value in columns.items())


def _object(contract: Contract, *, any_misread: bool) -> Iterator[Rule]:
    """Events that become usage have their data in an object."""
    if contract.family is Family.HEARTBEAT:
        return
    is_base64 = pl.col("/data_base64").is_not_null()
    if any_misread:
        is_base64 |= is_misread("/data_base64")
    needed = "an object is required"
    yield Rule(
        is_base64,
        Reason.INVALID_DATA,
        f"{contract.type} /data_base64",
        "JSON (RFC 8259) in base64, and no data beside it",
    )
    yield Rule(
        ~pl.col("/data"),
        Reason.INVALID_DATA,
        f"{contract.type} /data",
        needed,
        "/data",
        missing=needed,
        wrong_type=needed,
    )


def _of_field(contract: Contract, field: Field, *, any_misread: bool) -> Iterator[Rule]:
    value, at = pl.col(field.pointer), field.pointer

    type_is = f"type is {holds(field)}"

    def rule(is_broken: pl.Expr, text: str, shown: pl.Expr | None = value) -> Rule:
        return Rule(is_broken, field.reason, f"{contract.type} {at}", text, at, shown, field.kind, type_is)

    if any_misread:
        for length in range(2, len(field.path)):
            above = pointer(field.path[:length])
            text = "type is object"
            yield Rule(is_misread(above), field.reason, f"{contract.type} {above}", text, above, wrong_type=text)
        is_another = is_misread(at) & value.is_null() if field.takes_text else is_misread(at)
        yield rule(is_another, type_is, shown=None)
    if field.is_required:
        is_missing = value.is_null() | (value == "") if field.kind is Kind.TEXT else value.is_null()
        yield rule(is_missing.fill_null(value=True), "required")
    if field.values is not None:
        yield rule(value.is_in(list(field.values)).not_().fill_null(value=False), f"one of {', '.join(field.values)}")
    elif field.max_bytes is not None:
        is_long = (value.str.len_bytes() > field.max_bytes).fill_null(value=False)
        yield rule(is_long, f"at most {field.max_bytes} bytes")
    for bound, text in ((field.minimum, "at least"), (field.maximum, "at most")):
        if bound is not None:
            limit = float(bound) if field.kind is Kind.DOUBLE else int(bound) if bound == int(bound) else bound
            is_beyond = value < pl.lit(limit) if text == "at least" else value > pl.lit(limit)
            yield rule(is_beyond.fill_null(value=False), f"{text} {bound}")
