"""What is charged → the lines of an invoice, each rounded once; and what came after an invoice → corrections of it.

A line is never changed. What comes later is a pair of lines: minus what the key was last issued with, plus what it is
now. So all lines of a key sum to its exact total, rounded once, and nothing vanishes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from metering.canonical_json import digest
from metering.digits import EXACT
from metering.plan_terms import Fee

_ROUND = Context(prec=EXACT.prec)
CORRECTION = "Correction"
"""FOCUS' ChargeClass of a line that corrects what was invoiced before."""
WRITE_OFF = "write_off"
"""Kind of the line that gives up a small charge for an earlier month."""
USAGE = "usage"
"""Kind of the lines of metered usage."""


FEES = frozenset(Fee)
"""Kinds of the lines of what a plan costs beside its usage; `tier` of their keys is the plan."""


class Rounding(StrEnum):
    """How an amount between two units of a currency is rounded."""

    HALF_EVEN = "half-even"
    HALF_UP = "half-up"


class Kind(StrEnum):
    """What an account gets."""

    INVOICE = "invoice"
    CREDIT_NOTE = "credit_note"


class State(StrEnum):
    """Of an invoice, in this order; FOCUS' words."""

    OPEN = "Open"
    ISSUED = "Issued"
    VOIDED = "Voided"


class Key(NamedTuple):
    """What a line is about, within one account and currency. A price version has its own conditions."""

    original_period: date
    kind: str
    model: str | None
    meter: str | None
    price_version: int | None
    tier: str | None


@dataclass(frozen=True)
class Charge:
    """What a key comes to. `exact_amount` None: there is no price, and nothing is charged."""

    key: Key
    quantity: Decimal
    exact_amount: Decimal | None
    unit_price: Decimal | None = None


@dataclass(frozen=True)
class Money:
    """The currency of an invoice: how many decimals it has (ISO 4217), and how amounts are rounded to them."""

    currency: str
    minor_unit: int
    rounding: Rounding

    def rounded(self, exact: Decimal | None) -> Decimal:
        """The amount on a line."""
        mode = ROUND_HALF_EVEN if self.rounding is Rounding.HALF_EVEN else ROUND_HALF_UP
        return (exact or Decimal()).quantize(Decimal(1).scaleb(-self.minor_unit), mode, _ROUND)


@dataclass(frozen=True)
class Line:
    """A line of an invoice. exact_amount = amount + residual; without a price all three say nothing is charged."""

    line: int
    key: Key
    quantity: Decimal
    exact_amount: Decimal | None
    amount: Decimal
    residual: Decimal
    unit_price: Decimal | None = None
    charge_class: str | None = None
    corrects_invoice: str | None = None
    corrects_line: int | None = None

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all of it."""
        return digest({**{name: value for name, value in asdict(self).items() if name != "key"}, **self.key._asdict()})


@dataclass(frozen=True)
class IssuedLine:
    """The last line of a key that was issued: where it stands, and what the key came to with it."""

    invoice: str
    line: Line


@dataclass(frozen=True)
class Header:
    """An invoice without its lines. `usage_position`, `frontier`, `audit_id`: of which usage, and what proved it."""

    invoice: str
    issuer: str
    number: int
    account: str
    kind: Kind
    period: date
    period_start: datetime
    period_end: datetime
    timezone: str
    money: Money
    lines: int
    total: Decimal
    residual: Decimal
    usage_position: int
    frontier: datetime
    audit_id: int
    replaces: str | None = None

    def values(self) -> dict[str, Any]:
        """Its columns."""
        named = {name: value for name, value in vars(self).items() if name != "money"}
        return {**named, **asdict(self.money)}


@dataclass(frozen=True)
class Invoice:
    """An invoice with all its lines."""

    header: Header
    lines: tuple[Line, ...]

    @cached_property
    def document(self) -> str:
        """SHA-256 of the header and of the hashes of the lines."""
        return document(self.header, [line.hash for line in self.lines])


def document(header: Header, line_hashes: Sequence[str]) -> str:
    """The hash of an invoice whose lines have these."""
    return digest({**header.values(), "line_hashes": list(line_hashes)})


def own_lines(charges: Iterable[Charge], money: Money) -> list[Line]:
    """The lines of a month at its close, not numbered."""
    return [_line(charge, money) for charge in charges]


def corrections(charges: Iterable[Charge], issued: Mapping[Key, IssuedLine], money: Money) -> list[Line]:
    """The pairs of lines that make what was `issued` for one or more months what they are now, not numbered.

    Compared before rounding: a change below the currency's smallest unit is a pair too. A key that is gone comes to 0;
    one that was not issued has no line to take back.
    """
    present = {charge.key: charge for charge in charges}
    gone = [Charge(key, Decimal(), Decimal()) for key in issued if key not in present and not _is_zero(issued[key])]
    pairs: list[Line] = []
    for charge in [*present.values(), *gone]:
        before = issued.get(charge.key)
        if before is not None and (before.line.quantity, before.line.exact_amount) == (
            charge.quantity,
            charge.exact_amount,
        ):
            continue
        place: dict[str, Any] = {"charge_class": CORRECTION}
        if before is not None:
            place |= {"corrects_invoice": before.invoice, "corrects_line": before.line.line}
            pairs.append(replace(_negated(before.line), **place))
        pairs.append(replace(_line(charge, money), **place))
    return pairs


def write_off(
    lines: Iterable[Line],
    money: Money,
    below: Decimal | None,
    written_off: Mapping[date, Decimal] = MappingProxyType({}),
) -> list[Line]:
    """For each earlier month of which these corrections charge more, but less than `below`: a line that gives it up.

    Where they credit a month, what was `written_off` of it (by month, not negative) is credited first: an account gets
    back what it paid, and all of that.
    """
    by_month: dict[date, Decimal] = {}
    for line in lines:
        month = line.key.original_period
        by_month[month] = EXACT.add(by_month.get(month, Decimal()), line.amount)
    given_up = {
        month: -charged
        if below is not None and 0 < charged < below
        else max(min(written_off.get(month, Decimal()), -charged), Decimal())
        for month, charged in by_month.items()
    }
    return [
        replace(
            _line(Charge(Key(month, WRITE_OFF, None, None, None, None), Decimal(), amount), money),
            charge_class=CORRECTION,
        )
        for month, amount in given_up.items()
        if amount
    ]


def numbered(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines as they stand on an invoice: its own month first, then corrections by month; a pair stays together."""

    def place(line: Line) -> tuple[Any, ...]:
        key = line.key
        texts = [text or "" for text in (key.model, key.meter)]
        is_correction = line.charge_class is not None
        return (is_correction, key.original_period, key.kind == WRITE_OFF, key.kind, *texts, *_last_parts(key))

    return tuple(replace(line, line=number) for number, line in enumerate(sorted(lines, key=place), start=1))


def totals(lines: Iterable[Line]) -> tuple[Decimal, Decimal]:
    """The sum of the rounded amounts, and of what rounding left over."""
    total, residual = Decimal(), Decimal()
    for line in lines:
        total, residual = EXACT.add(total, line.amount), EXACT.add(residual, line.residual)
    return total, residual


def kind_of(lines: Sequence[Line]) -> Kind:
    """A credit note where the account has nothing but corrections, and gets money back."""
    is_correction = all(line.charge_class == CORRECTION for line in lines)
    return Kind.CREDIT_NOTE if is_correction and totals(lines)[0] < 0 else Kind.INVOICE


def _last_parts(key: Key) -> tuple[Any, ...]:
    return (key.price_version is not None, key.price_version or 0, key.tier or "")


def _line(charge: Charge, money: Money) -> Line:
    amount = money.rounded(charge.exact_amount)
    residual = EXACT.subtract(charge.exact_amount or Decimal(), amount)
    return Line(0, charge.key, charge.quantity, charge.exact_amount, amount, residual, charge.unit_price)


def _negated(line: Line) -> Line:
    def minus(value: Decimal) -> Decimal:
        return EXACT.subtract(Decimal(), value)

    return replace(
        line,
        line=0,
        quantity=minus(line.quantity),
        exact_amount=None if line.exact_amount is None else minus(line.exact_amount),
        amount=minus(line.amount),
        residual=minus(line.residual),
        corrects_invoice=None,
        corrects_line=None,
    )


def _is_zero(issued: IssuedLine) -> bool:
    return not issued.line.quantity and not issued.line.exact_amount
