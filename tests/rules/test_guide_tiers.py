"""The worked examples of tiers and packages in the guide: each row of a table is what its catalog bills."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from catalog.file import TieredPrice, parse_catalog
from tests.pages import ROOT

PAGE = (ROOT / "docs/how-to/prices.md").read_text(encoding="utf-8")
SECTION = re.compile(
    r"^### (?P<title>Graduated|Volume|Packages)$.*?```yaml\n(?P<catalog>.*?)```(?P<rest>.*?)(?=^##)",
    re.MULTILINE | re.DOTALL,
)
ROW = re.compile(r"^\| (?P<total>[0-9,]+) \| (?P<lines>[^|]+) \| (?P<amount>[0-9.,]+) \|$", re.MULTILINE)
CASES = [
    (match["title"], match["catalog"], row["total"], row["lines"], row["amount"])
    for match in SECTION.finditer(PAGE)
    for row in ROW.finditer(match["rest"])
]


def number(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


@pytest.mark.parametrize(("title", "catalog", "total", "lines", "amount"), CASES)
def test_each_example_costs_what_the_page_says(title: str, catalog: str, total: str, lines: str, amount: str) -> None:
    (price,) = parse_catalog(catalog).prices
    assert isinstance(price, TieredPrice)
    found = price.price_terms.lines(Decimal(0), number(total), number(total), is_last=True)
    assert sum((line.amount for line in found), Decimal(0)) == number(amount)
    shown = [product.split(" × ") for product in lines.split(" + ")]
    products = [(number(pair[0]), number(pair[1])) for pair in shown if len(pair) == 2]
    flat = sum((number(single[0]) for single in shown if len(single) == 1), Decimal(0))
    assert sum((left * right for left, right in products), flat) == number(amount)
    if title != "Packages":
        assert products == [(line.quantity, line.unit_price) for line in found]


def test_the_page_has_examples_of_every_kind() -> None:
    assert {title for title, *_ in CASES} == {"Graduated", "Volume", "Packages"}
    assert len(CASES) == 8
