"""Lines are rounded once; what comes after an invoice is pairs of lines that sum to the exact total; faults are named.

Oracles: fractions, and a recomputation of the sums from nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.canonical_json import canonical_json, digest
from metering.invoice_chain import End, Event, appended
from metering.invoice_verification import Stored, StoredInvoice, wrong_account, wrong_numbers
from metering.invoices import (
    WRITE_OFF,
    Charge,
    Header,
    Invoice,
    IssuedLine,
    Key,
    Kind,
    Line,
    Money,
    Rounding,
    State,
    corrections,
    kind_of,
    numbered,
    own_lines,
    totals,
    write_off,
)

OCTOBER, NOVEMBER, DECEMBER = (date(2026, month, 1) for month in (10, 11, 12))
EUR = Money("EUR", 2, Rounding.HALF_EVEN)
AT = datetime(2026, 11, 4, tzinfo=UTC)
amounts = st.none() | st.decimals(-(10**9), 10**9, places=12, allow_nan=False)
monies = st.builds(Money, st.just("EUR"), st.integers(0, 4), st.sampled_from(Rounding))
keys = st.builds(
    Key,
    st.just(OCTOBER),
    st.sampled_from(["usage", "flat"]),
    st.sampled_from(["a", "b", None]),
    st.sampled_from(["input_tokens", None]),
    st.sampled_from([1, 2, None]),
    st.sampled_from(["1", "2", None]),
)
charges = st.lists(
    st.builds(Charge, keys, st.decimals(-(10**6), 10**6, places=3), amounts),
    unique_by=lambda charge: charge.key,
    max_size=6,
)


def half(exact: Decimal, money: Money) -> Fraction:
    """The rule of rounding, in fractions."""
    scaled = Fraction(exact) * 10**money.minor_unit
    below = floor(scaled)
    rest = scaled - below
    if rest != Fraction(1, 2):
        return Fraction(below + (rest > Fraction(1, 2)), 10**money.minor_unit)
    if money.rounding is Rounding.HALF_EVEN:
        return Fraction(below + below % 2, 10**money.minor_unit)
    return Fraction(below + (scaled > 0), 10**money.minor_unit)


@given(money=monies, exact=amounts)
def test_an_amount_is_rounded_as_fractions_say_and_its_residual_is_what_is_left(
    money: Money, exact: Decimal | None
) -> None:
    (line,) = own_lines([Charge(Key(OCTOBER, "usage", "a", "b", 1, None), Decimal(1), exact)], money)
    assert Fraction(line.amount) == half(exact or Decimal(), money)
    assert Fraction(line.amount) + Fraction(line.residual) == Fraction(exact or 0)


@given(money=monies, states=st.lists(charges, min_size=1, max_size=5))
def test_after_any_changes_all_lines_of_a_key_sum_to_its_exact_total_rounded_once(
    money: Money, states: list[list[Charge]]
) -> None:
    issued: dict[Key, IssuedLine] = {}
    lines: list[Line] = []
    for number, state in enumerate(states):
        new = numbered(own_lines(state, money) if number == 0 else corrections(state, issued, money))
        issued |= {line.key: IssuedLine(f"i-{number}", line) for line in new}
        lines += new
        # The same again is nothing new.
        assert corrections(state, issued, money) == []
    last = {charge.key: charge for charge in states[-1]}
    sums: defaultdict[Key, list[Fraction]] = defaultdict(lambda: [Fraction()] * 3)
    for line in lines:
        parts = (line.quantity, line.amount, line.residual)
        sums[line.key] = [total + Fraction(part) for total, part in zip(sums[line.key], parts, strict=True)]
    for key, (quantity, amount, residual) in sums.items():
        exact = (last[key].exact_amount if key in last else None) or Decimal()
        assert quantity == (Fraction(last[key].quantity) if key in last else 0)
        assert amount == half(exact, money)
        assert amount + residual == Fraction(exact)
    assert set(last) <= set(sums)


@given(money=monies, before=charges, after=charges)
def test_a_pair_takes_back_the_line_that_it_names_to_the_last_digit(
    money: Money, before: list[Charge], after: list[Charge]
) -> None:
    issued = {line.key: IssuedLine("i-1", line) for line in numbered(own_lines(before, money))}
    pairs = numbered(corrections(after, issued, money))
    for minus, plus in pairwise(pairs):
        if minus.corrects_invoice and minus.key == plus.key:
            known = issued[minus.key].line
            assert (minus.corrects_line, plus.corrects_line) == (known.line, known.line)
            assert (minus.quantity, minus.amount, minus.residual) == (-known.quantity, -known.amount, -known.residual)
    assert all(line.charge_class == "Correction" for line in pairs)


def test_only_what_an_account_would_owe_for_an_earlier_month_is_written_off() -> None:
    def lines(amount: str, month: date = OCTOBER) -> list[Line]:
        key = Key(month, "usage", "a", "input_tokens", 1, None)
        return [
            replace(line, charge_class="Correction")
            for line in own_lines([Charge(key, Decimal(1), Decimal(amount))], EUR)
        ]

    assert [line.amount for line in write_off(lines("0.49"), EUR, Decimal("0.50"))] == [Decimal("-0.49")]
    for amount in ("0.50", "-0.10", "0.004"):
        assert write_off(lines(amount), EUR, Decimal("0.50")) == []
    both = lines("0.30") + lines("0.30", NOVEMBER)
    assert [(line.key.original_period, line.amount) for line in write_off(both, EUR, Decimal("0.50"))] == [
        (OCTOBER, Decimal("-0.30")),
        (NOVEMBER, Decimal("-0.30")),
    ]


@pytest.mark.parametrize(("left", "right"), [("1.50", "1.5"), ("0E+3", "0"), ("-0", "0"), ("1E+2", "100")])
def test_one_number_has_one_canonical_form(left: str, right: str) -> None:
    assert digest({"a": Decimal(left)}) == digest({"a": Decimal(right)})


@given(number=st.decimals(allow_nan=False, allow_infinity=False, min_value=-1, max_value=1, places=12))
def test_a_change_in_the_twelfth_place_changes_the_hash(number: Decimal) -> None:
    assert digest([number]) != digest([number + Decimal("1E-12")])


def test_canonical_json_is_sorted_utf_8_without_spaces_and_refuses_binary_floats() -> None:
    value = {"b": AT, "a": [None, True, "ä\n", OCTOBER, Decimal("1.0")]}
    assert canonical_json(value).decode() == '{"a":[null,true,"ä\\n","2026-10-01","1"],"b":"2026-11-04T00:00:00Z"}'
    for wrong in (1.5, {"ä": 1}, {1}, object()):
        with pytest.raises(TypeError):
            canonical_json(wrong)


class Ledger:
    """The invoices of one account, issued in order."""

    def __init__(self) -> None:
        self.invoices: list[StoredInvoice] = []
        self.events: list[Event] = []

    def issue(self, month: date, lines: list[Line], money: Money = EUR) -> None:
        total, residual = totals(lines)
        number = len(self.invoices) + 1
        header = Header(
            invoice=f"weir-{number}",
            issuer="weir",
            number=number,
            account="acme",
            kind=kind_of(lines) if lines else Kind.INVOICE,
            period=month,
            period_start=AT,
            period_end=AT + timedelta(days=30),
            timezone="UTC",
            money=money,
            lines=len(lines),
            total=total,
            residual=residual,
            usage_position=100,
            frontier=AT,
            audit_id=1,
        )
        invoice = Invoice(header, numbered(lines))
        self.invoices.append(StoredInvoice(header, tuple((line, line.hash) for line in invoice.lines)))
        for state in (State.OPEN, State.ISSUED):
            self.append(invoice.header.invoice, state, invoice.document)

    def append(self, invoice: str, state: State, document: str) -> None:
        end = End(self.events[-1].sequence, self.events[-1].hash) if self.events else End()
        self.events.append(appended(end, "acme", invoice, state, document, at=AT, made_by="test"))

    def last(self, month: date) -> dict[Key, IssuedLine]:
        return {
            line.key: IssuedLine(invoice.header.invoice, line)
            for invoice in self.invoices
            for line, _ in invoice.lines
            if line.key.original_period == month and line.key.kind != WRITE_OFF
        }

    def faults(self) -> list[str]:
        numbers = [invoice.header.number for invoice in self.invoices]
        return [*wrong_account(Stored("acme", self.invoices, self.events)), *wrong_numbers({"weir": numbers})]

    def plant(self, place: int, line: int | None = None, *, hashed: bool = False, **changed: Any) -> None:
        """Change an invoice's header, or a line of it; `hashed`: with the hash of the line."""
        invoice = self.invoices[place]
        if line is None:
            self.invoices[place] = replace(invoice, header=replace(invoice.header, **changed))
            return
        lines = list(invoice.lines)
        new = replace(lines[line][0], **changed)
        lines[line] = (new, new.hash if hashed else lines[line][1])
        self.invoices[place] = replace(invoice, lines=tuple(lines))


def charge(month: date, model: str, quantity: str, exact: str) -> Charge:
    return Charge(Key(month, "usage", model, "input_tokens", 1, None), Decimal(quantity), Decimal(exact))


@pytest.fixture
def ledger() -> Ledger:
    """October with two lines, November with a correction of October, December."""
    made = Ledger()
    made.issue(OCTOBER, own_lines([charge(OCTOBER, "a", "10", "1.005"), charge(OCTOBER, "b", "20", "2.111")], EUR))
    changed = corrections(
        [charge(OCTOBER, "a", "11", "1.1055"), charge(OCTOBER, "b", "20", "2.111")], made.last(OCTOBER), EUR
    )
    made.issue(NOVEMBER, own_lines([charge(NOVEMBER, "a", "5", "0.5")], EUR) + changed)
    made.issue(DECEMBER, own_lines([charge(DECEMBER, "a", "7", "0.7")], EUR))
    assert made.faults() == []
    return made


def test_a_changed_line_is_named(ledger: Ledger) -> None:
    ledger.plant(0, 1, quantity=Decimal(21))
    assert "line 2 of weir-1 was changed: it is not what its hash says" in ledger.faults()
    assert "weir-1 is not what was issued" in ledger.faults()


def test_a_line_changed_with_its_hash_is_found_by_the_chain(ledger: Ledger) -> None:
    ledger.plant(0, 1, hashed=True, quantity=Decimal(21))
    assert ledger.faults() == ["weir-1 is not what was issued", *ledger.faults()[1:]]


def test_a_removed_line_is_named(ledger: Ledger) -> None:
    ledger.invoices[0] = replace(ledger.invoices[0], lines=ledger.invoices[0].lines[:1])
    assert "weir-1 lacks line 2" in ledger.faults()
    assert "the lines of weir-1 sum to 1, and its total is 3.11" in ledger.faults()


@pytest.mark.parametrize("what", ["lines", "headers", "both"])
def test_two_swapped_invoices_are_named_together(ledger: Ledger, what: str) -> None:
    first, third = ledger.invoices[0], ledger.invoices[2]
    if what in ("lines", "both"):
        first, third = replace(first, lines=third.lines), replace(third, lines=first.lines)
    if what in ("headers", "both"):
        ours, theirs = first.header, third.header
        first, third = (
            replace(first, header=replace(theirs, invoice=ours.invoice, number=ours.number)),
            replace(third, header=replace(ours, invoice=theirs.invoice, number=theirs.number)),
        )
    ledger.invoices[0], ledger.invoices[2] = first, third
    assert "weir-1 and weir-3 were swapped: each has content of the other" in ledger.faults()


def test_a_skipped_number_is_named(ledger: Ledger) -> None:
    assert list(wrong_numbers({"weir": [1, 2, 4, 8], "other": [1, 1]})) == [
        "the series of other has number 1 twice",
        "the series of weir lacks number 3",
        "the series of weir lacks number 5 to 7",
    ]


def test_a_correction_applied_twice_is_named(ledger: Ledger) -> None:
    pair = [line for line, _ in ledger.invoices[1].lines if line.charge_class]
    ledger.issue(date(2027, 1, 1), [replace(line, line=0) for line in pair])
    assert ledger.faults() == ["line 1 of weir-4 takes back line 1 of weir-1, which line 2 of weir-2 took back already"]


def test_a_key_charged_twice_without_a_correction_is_named(ledger: Ledger) -> None:
    ledger.issue(date(2027, 1, 1), own_lines([charge(OCTOBER, "b", "20", "2.111")], EUR))
    assert ledger.faults() == ["line 1 of weir-4 charges again what line 2 of weir-1 issued"]


@pytest.mark.parametrize("name", ["exact_amount", "amount", "residual"])
def test_a_rounding_of_one_in_the_twelfth_place_is_named_even_with_all_hashes(name: str) -> None:
    made = Ledger()
    (line,) = own_lines([charge(OCTOBER, "a", "10", "1.005")], EUR)
    made.issue(OCTOBER, [replace(line, **{name: getattr(line, name) + Decimal("1E-12")})])
    assert any(fault.startswith("line 1 of weir-1") for fault in made.faults())


def test_exchanged_missing_and_changed_events_are_named(ledger: Ledger) -> None:
    whole = list(ledger.events)
    ledger.events = [*whole[:2], *whole[4:], *whole[2:4]]
    assert any("the chain of acme lacks the events between 2 and 5" in fault for fault in ledger.faults())
    ledger.events = [whole[0], replace(whole[1], made_by="somebody else"), *whole[2:]]
    assert ledger.faults() == ["event 2 of acme (weir-1 Issued) is not what its hash says"]
    ledger.events = [*whole[:2], replace(whole[2], previous=whole[0].hash), *whole[3:]]
    assert (
        "event 3 of acme (weir-2 Open) does not follow the one before it: they were exchanged, or one was changed"
        in (ledger.faults())
    )
    ledger.events = whole[:-1]
    assert ledger.faults() == ["weir-3 has the states Open"]


def test_the_lines_of_a_voided_invoice_count_for_nothing(ledger: Ledger) -> None:
    ledger.append("weir-3", State.VOIDED, ledger.events[-1].document)
    ledger.append("weir-2", State.VOIDED, ledger.events[2].document)
    again = corrections(
        [charge(OCTOBER, "a", "11", "1.1055"), charge(OCTOBER, "b", "20", "2.111")],
        {key: issued for key, issued in ledger.last(OCTOBER).items() if issued.invoice == "weir-1"}
        | {ledger.invoices[0].lines[0][0].key: IssuedLine("weir-1", ledger.invoices[0].lines[0][0])},
        EUR,
    )
    ledger.issue(NOVEMBER, own_lines([charge(NOVEMBER, "a", "5", "0.5")], EUR) + again)
    assert ledger.faults() == []


def test_an_invoice_that_is_gone_and_one_without_a_chain_are_named(ledger: Ledger) -> None:
    gone = ledger.invoices.pop()
    assert "weir-3 is in the chain of acme, and there is no such invoice of it" in ledger.faults()
    ledger.invoices.append(gone)
    ledger.events = ledger.events[:-2]
    assert ledger.faults() == ["weir-3 has the states none"]


def test_a_line_more_than_was_issued_is_named(ledger: Ledger) -> None:
    lines = ledger.invoices[0].lines
    more = replace(lines[1][0], line=3)
    ledger.invoices[0] = replace(ledger.invoices[0], lines=(*lines, (more, more.hash)))
    assert "weir-1 has more than its lines: line 3" in ledger.faults()


def test_an_amount_that_is_not_rounded_as_the_invoice_says_is_named_even_with_all_hashes() -> None:
    made = Ledger()
    (line,) = own_lines([charge(OCTOBER, "a", "10", "1.005")], EUR)
    cent = Decimal("0.01")
    made.issue(OCTOBER, [replace(line, amount=line.amount + cent, residual=line.residual - cent)])
    assert made.faults() == ["line 1 of weir-1 is 1.01, and 1.005 rounded half-even is 1"]


def test_what_is_taken_back_keeps_the_rounding_of_the_invoice_that_issued_it() -> None:
    made = Ledger()
    made.issue(OCTOBER, own_lines([charge(OCTOBER, "a", "10", "1.25")], EUR))
    tenths = Money("EUR", 1, Rounding.HALF_EVEN)
    made.issue(NOVEMBER, corrections([charge(OCTOBER, "a", "11", "1.35")], made.last(OCTOBER), tenths), tenths)
    assert [line.amount for line, _ in made.invoices[1].lines] == [Decimal("-1.25"), Decimal("1.4")]
    assert made.faults() == []


def test_a_residual_of_an_invoice_that_is_not_that_of_its_lines_is_named(ledger: Ledger) -> None:
    ledger.plant(0, residual=Decimal("0.007"))
    assert "the residuals of weir-1 sum to 0.006, and it has 0.007" in ledger.faults()


def test_a_state_of_another_content_is_named(ledger: Ledger) -> None:
    ledger.append("weir-3", State.VOIDED, ledger.events[0].document)
    assert ledger.faults() == ["event 7 of acme is of another content of weir-3 than was issued"]


@pytest.mark.parametrize(
    "planted",
    [
        {"quantity": Decimal(-11)},
        {"amount": Decimal("-0.99")},
        {"residual": Decimal("-0.004")},
        {"corrects_line": 2},
        {"corrects_invoice": "weir-0"},
    ],
    ids=str,
)
def test_a_correction_that_takes_back_anything_but_the_line_that_it_names_is_named(planted: dict[str, Any]) -> None:
    """With all hashes, and with the other line of the pair."""
    made = Ledger()
    made.issue(OCTOBER, own_lines([charge(OCTOBER, "a", "10", "1.005"), charge(OCTOBER, "b", "10", "1.005")], EUR))
    after = [charge(OCTOBER, "a", "11", "1.1055"), charge(OCTOBER, "b", "10", "1.005")]
    minus, plus = corrections(after, made.last(OCTOBER), EUR)
    place = {name: value for name, value in planted.items() if name.startswith("corrects")}
    made.issue(NOVEMBER, [replace(minus, **planted), replace(plus, **place)])
    assert "line 1 of weir-2 does not take back what line 1 of weir-1 issued" in made.faults()


def test_a_correction_without_an_amount_of_a_line_that_costs_nothing_is_named() -> None:
    made = Ledger()
    made.issue(OCTOBER, own_lines([charge(OCTOBER, "a", "10", "0")], EUR))
    minus, plus = corrections([charge(OCTOBER, "a", "11", "1")], made.last(OCTOBER), EUR)
    made.issue(NOVEMBER, [replace(minus, exact_amount=None), plus])
    assert made.faults() == ["line 1 of weir-2 does not take back what line 1 of weir-1 issued"]


def test_each_month_may_be_written_off_again(ledger: Ledger) -> None:
    for month, quantity in ((date(2027, 1, 1), "8"), (date(2027, 2, 1), "9")):
        pairs = corrections([charge(DECEMBER, "a", quantity, f"0.{quantity}")], ledger.last(DECEMBER), EUR)
        given_up = write_off(pairs, EUR, Decimal(1))
        assert [line.amount for line in given_up] == [Decimal("-0.1")]
        ledger.issue(month, pairs + given_up)
    assert ledger.faults() == []
