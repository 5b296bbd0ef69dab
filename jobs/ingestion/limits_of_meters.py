"""What meters require of contracts: each sums a column of completions, with numbers from 0 to its limit.

Its conditions may use texts and booleans that a contract of an outcome declares.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal

from jobs.settings.dimensions import RESERVED, of_events
from jobs.settings.meters import MeterConfig
from jobs.settings.outcome_columns import OF_OUTCOMES, OUTCOME_TEXTS
from metering.contracts.model import Contract, Field, Kind
from metering.meters import FAMILY, Declaration, texts_of
from metering.price_attributes import PriceAttribute
from metering.vocabulary import BILLABLE, OF_REQUESTS, REPORTING, Family, Reason

SUMMED = (Kind.INTEGER, Kind.DECIMAL)
CONDITIONAL = (Kind.TEXT, Kind.BOOLEAN)
"""What `where` of a meter can ask for."""
COUNTABLE = (Kind.TEXT, *SUMMED)
"""Kinds whose different values a meter can count."""


def limited(contracts: Mapping[str, Contract], meters: Mapping[str, MeterConfig]) -> dict[str, Contract]:
    """The contracts with the meters' limits on their fields: no quantity is below 0, or above `max_per_event`.

    Raises ValueError where a meter reads the numbers of a column that no completion's contract gives, or that is no
    number.
    """
    limits: dict[str, Decimal | None] = {}
    for name, meter in sorted(meters.items()):
        if (column := meter.reported) is None:
            continue
        _refuse_unknown(name, column, contracts)
        given = [limit for limit in (limits.get(column), meter.max_per_event) if limit is not None]
        limits[column] = min(given, default=None)
    return limited_to(contracts, limits)


def limited_to(contracts: Mapping[str, Contract], limits: Mapping[str, Decimal | None]) -> dict[str, Contract]:
    """The contracts with these columns' fields limited to 0 up to the limit; None: the contract's own limits."""
    return {
        name: replace(contract, fields=tuple(_limited(field, limits) for field in contract.fields))
        for name, contract in contracts.items()
    }


def _limited(field: Field, limits: Mapping[str, Decimal | None]) -> Field:
    if field.column not in limits:
        return field
    bounds = [bound for bound in (field.maximum, limits[field.column]) if bound is not None]
    lowest, highest = max(field.minimum or Decimal(0), Decimal(0)), min(bounds, default=None)
    if highest is not None and lowest > highest:
        raise ValueError(
            f"a meter sums {field.column}, but {field.pointer} of a contract is at least {lowest:f} and may be "
            f"at most {highest:f}: no event could report it"
        )
    return replace(field, minimum=lowest, maximum=highest)


def _refuse_unknown(name: str, column: str, contracts: Mapping[str, Contract]) -> None:
    given = _reported(contracts)
    if given.get(column) not in SUMMED:
        offered = ", ".join(sorted(found for found, kind in given.items() if kind in SUMMED))
        problem = f"is {given[column]}" if column in given else "is given by no contract of a completion"
        raise ValueError(f"meters.{name} sums {column}, which {problem}; it can sum {offered}")


def _reported(contracts: Mapping[str, Contract]) -> dict[str, Kind]:
    """What contracts of events that report quantities give, by column."""
    reporting = [contract for contract in contracts.values() if contract.family in REPORTING]
    return {field.column: field.kind for contract in reporting for field in contract.fields}


def refuse_unknown_conditions(meters: Iterable[Declaration], contracts: Mapping[str, Contract]) -> None:
    """Raises ValueError where a meter's `where` names a column that no contract of an outcome has as text or boolean.

    Or a value that the column can never have: such a meter would silently count nothing.
    """
    for meter in meters:
        fields = _conditional(contracts, _looked_at(meter)) | _families(contracts)
        for column, values in meter.where:
            if column not in fields and column in _conditional(contracts, [Family.QUANTITY]):
                raise ValueError(
                    f"meters.{meter.name}.where names {column}, which only events of the family quantity have: `count: "
                    f"outcomes` counts these where `where` has `{FAMILY}: {Family.QUANTITY}`, too"
                )
            if column not in fields:
                raise ValueError(
                    f"meters.{meter.name}.where names {column}, which is not a text or boolean column of a "
                    "contract; it "
                    f"can name {', '.join(sorted(fields))}"
                )
            possible = _possible(fields[column])
            for value in values:
                if value not in possible and (isinstance(value, bool) or possible):
                    offered = ", ".join(texts_of(sorted(possible))) or "any text, in quotes"
                    condition = f"meters.{meter.name}.where requires {column} {value!r}"
                    raise ValueError(f"{condition}, which no event has; it can be {offered}")


def refuse_unknown_contents(meters: Iterable[Declaration], contracts: Mapping[str, Contract]) -> None:
    """Raises ValueError where a meter's `once_per` names a column that no contract of an outcome has as text.

    Every outcome of such a meter would silently count.
    """
    for meter in meters:
        if meter.once_per is None:
            continue
        fields = _conditional(contracts, _looked_at(meter))
        texts = sorted(name for name, given in fields.items() if all(field.kind is Kind.TEXT for field in given))
        if meter.once_per.column not in texts:
            raise ValueError(
                f"meters.{meter.name}.once_per names {meter.once_per.column}, which is not a text column of a "
                "contract of "
                f"what it counts; it can name {', '.join(texts)}"
            )


def refuse_unknown_members(meters: Iterable[Declaration], contracts: Mapping[str, Contract]) -> None:
    """Raises ValueError where a meter counts different values of a column that no contract of an outcome gives.

    Also where the column is neither a text nor an exact number: the meter would count nothing, silently.
    """
    for meter in meters:
        of = meter.of_period
        if of is None or of.is_of_numbers:
            continue
        families = (Family.QUANTITY,) if meter.asks_family else BILLABLE
        offered = sorted(
            {
                field.column
                for contract in contracts.values()
                for field in (contract.fields if contract.family in families else ())
                if field.kind in COUNTABLE and field.column not in OF_OUTCOMES - set(OUTCOME_TEXTS)
            }
        )
        if of.column not in offered:
            raise ValueError(
                f"meters.{meter.name} counts the different values of {of.column}, which no contract of an outcome has "
                f"as text or exact number; it can count those of {', '.join(offered)}"
            )


def refuse_unknown_attributes(attributes: Iterable[PriceAttribute], contracts: Mapping[str, Contract]) -> None:
    """Raises ValueError for an attribute of prices that no contract of an outcome gives as a text or boolean.

    And for an attribute with bands of a column that no contract of a completion fills with a number.
    """
    offered = sorted(_conditional(contracts, BILLABLE).keys() - {"model"})
    numbers = sorted(name for name, kind in _reported(contracts).items() if kind in SUMMED)
    for attribute in attributes:
        if not attribute.bands and not attribute.is_of_account and attribute.name not in offered:
            raise ValueError(
                f"price_attributes names {attribute.name}, which is not a text or boolean column of a contract; it "
                f"can name {', '.join(offered)}"
            )
        for column in attribute.of:
            if column not in numbers:
                raise ValueError(
                    f"price_attributes.{attribute.name} is of {column}, which is not a number that a completion "
                    "reports; "
                    f"it can be of {', '.join(numbers)}"
                )


def _looked_at(meter: Declaration) -> Collection[str]:
    """The families of events that make the outcomes of a meter."""
    if meter.asks_family:
        return (Family.QUANTITY,)
    return OF_REQUESTS if meter.counts_outcomes else BILLABLE


def _families(contracts: Mapping[str, Contract]) -> dict[str, list[Field]]:
    """What `where` can say of the family of an outcome: that it is a quantity, if there are any."""
    is_one = any(contract.family is Family.QUANTITY for contract in contracts.values())
    families = (Family.QUANTITY.value,)
    return {FAMILY: [Field((FAMILY,), Kind.TEXT, FAMILY, Reason.INVALID_DATA, values=families)]} if is_one else {}


def _conditional(contracts: Mapping[str, Contract], families: Collection[str]) -> dict[str, list[Field]]:
    """By column the texts and booleans that contracts of these families give."""
    fields: dict[str, list[Field]] = {}
    for contract in contracts.values():
        for field in contract.fields if contract.family in families else ():
            if field.kind in CONDITIONAL and field.column not in OF_OUTCOMES - set(OUTCOME_TEXTS):
                fields.setdefault(field.column, []).append(field)
    return fields


def _possible(fields: Iterable[Field]) -> set[str | bool]:
    """What a column of these fields may hold; empty: any text."""
    found: set[str | bool] = set()
    for field in fields:
        if field.kind is Kind.TEXT and field.values is None:
            return set()
        found |= {True, False} if field.kind is Kind.BOOLEAN else set(field.values or ())
    return found


def refuse_unknown_dimensions(names: Iterable[str], contracts: Mapping[str, Contract]) -> None:
    """Raises ValueError for a dimension that no contract of an outcome gives as a text, and that no account has."""
    billable = [contract for contract in contracts.values() if contract.family in BILLABLE]
    texts = {field.column for contract in billable for field in contract.fields if field.kind is Kind.TEXT}
    for name in of_events(names):
        if name not in texts:
            offered = ", ".join(sorted(texts - RESERVED))
            raise ValueError(
                f"dimensions names {name}, which is not a text column of a contract; it can name {offered}"
            )
