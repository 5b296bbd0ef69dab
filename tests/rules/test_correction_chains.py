"""A correction begins with what its window was: what came before its batch and in it, or nothing is explained."""

from __future__ import annotations

from decimal import Decimal

import pytest

from jobs.audit.bills.chains import Chain, unexplained_change

WINDOW = ("noon", "a", "fast", "tokens", "EUR")
Entry = tuple[int, Decimal, Decimal | None]


def correction(lsn: int, old: int, new: int, price: int = 2) -> dict[str, object]:
    said = {"old_quantity": old, "new_quantity": new, "old_amount": old * price, "new_amount": new * price}
    return {"usage_lsn": lsn, "meter": "tokens", "lsns": [lsn], **{name: str(value) for name, value in said.items()}}


def entry(lsn: int, quantity: int, price: int | None = 2) -> Entry:
    return lsn, Decimal(quantity), None if price is None else Decimal(price)


def chain(*rows: dict[str, object]) -> Chain:
    return Chain(WINDOW, rows, frozenset())


CAME = [entry(1, 10), entry(2, 5), entry(8, 7)]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([correction(5, 15, 16)], "what came before"),
        ([correction(5, 22, 23)], "what came before, and in its batch"),
        ([correction(5, 15, 16), correction(6, 16, 18)], "one after the other"),
        ([correction(5, 15, 16), correction(6, 23, 25)], "what came between"),
        ([correction(1, 0, 1)], "nothing was there"),
    ],
)
def test_the_earlier_value_of_a_window_is_the_sum_up_to_the_correction(rows: list[dict[str, object]], why: str) -> None:
    assert unexplained_change(chain(*rows), CAME) == "", why


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([correction(5, 10, 11)], "the second came before"),
        ([correction(5, 115, 116)], "it never was so much"),
        ([correction(5, 15, 16, price=3)], "not at this price"),
        ([correction(5, 22, 23), correction(9, 16, 17)], "what was there stays"),
        ([correction(9, 15, 16)], "all came before"),
    ],
)
def test_a_window_was_never_anything_else(rows: list[dict[str, object]], why: str) -> None:
    assert "never was" in unexplained_change(chain(*rows), CAME), why


def test_what_has_no_price_is_worth_nothing() -> None:
    assert unexplained_change(chain(correction(5, 15, 16, price=0)), [entry(1, 10, None), entry(2, 5, 0)]) == ""


def test_numbers_have_as_many_digits_as_there_are() -> None:
    many = 10**40
    assert unexplained_change(chain(correction(5, many + 1, many + 2)), [entry(1, many), entry(2, 1)]) == ""
    assert "never was" in unexplained_change(chain(correction(5, many, many + 1)), [entry(1, many), entry(2, 1)])
