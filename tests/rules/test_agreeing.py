"""Ended months are billed again, and price jumps stored, after confirmation: beforehand, or at a terminal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal

import pytest
import typer

from catalog.closed_months import ClosedMonth, ClosedMonthsTouched
from cli.confirmation import agreed

MONTHS = [
    ClosedMonth(name, date(2026, month, 1), {"EUR": Decimal("1.50")}, {"EUR": Decimal("0.030"), "USD": Decimal(2)})
    for name, month in [("acme", 1), ("acme", 2), ("bolt", 1), ("bolt", 2), ("bolt", 3), ("cat", 1), ("dog", 1)]
]
Answer = Callable[[bool, str], list[bool]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """With which words a change that touches ended months was made, on a terminal or not, and with which answer."""

    def ask(is_terminal: bool, answer: str, backdates: bool = False) -> list[bool]:
        made: list[bool] = []

        def change(backdates: bool) -> str:
            made.append(backdates)
            if not backdates:
                raise ClosedMonthsTouched(MONTHS)
            return "done"

        class Stdin:
            def isatty(self) -> bool:
                return is_terminal

        def confirm(text: str, *, abort: bool, err: bool) -> None:
            assert abort
            assert err
            if answer != "y":
                raise typer.Abort

        monkeypatch.setattr("sys.stdin", Stdin())
        monkeypatch.setattr("typer.confirm", confirm)
        assert agreed(change, backdates, ClosedMonthsTouched) == "done"
        return made

    return ask


def test_with_the_option_there_is_no_prompt(asked: Callable[..., list[bool]]) -> None:
    assert asked(False, "n", backdates=True) == [True]


def test_without_a_terminal_it_is_refused_with_a_sentence(asked: Answer) -> None:
    with pytest.raises(ClosedMonthsTouched) as refused:
        asked(False, "y")
    assert str(refused.value).startswith(
        "This bills 7 ended months again, with the next audit: acme 2026-01 (1.5 EUR becomes 0.03 EUR and 2 USD); "
    )
    assert "; and 2 more. Nothing is stored. If that is what you mean, add --backdate;" in str(refused.value)


def test_on_a_terminal_the_answer_decides(asked: Answer) -> None:
    assert asked(True, "y") == [False, True]
    with pytest.raises(typer.Abort):
        asked(True, "n")
