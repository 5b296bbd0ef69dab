"""The guide's page of usual traffic: what it says is billed is billed, from each event to each digit of each line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import yaml

from catalog.file import CatalogFile, parse_catalog
from jobs.joins.config import JoinsConfig
from jobs.queries.periods import Window
from jobs.queries.usage import UsageQuery
from tests.pages import DOCS, blocks_in
from tests.pipelines.as_billed import Stack, billed, listed

PAGE = DOCS / "how-to/usual-traffic.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| (?P<model>[\w-]+) \| `(?P<meter>\w+)` \| (?P<reported>\S+) \| (?P<billed>.+) \| (?P<amount>\S+) \|$",
    re.MULTILINE,
)
PRODUCT = re.compile(r"(?P<quantity>[\d,]+) × (?P<price>[\d.]+)(?: / (?P<per>[\d,]+))?")
ELSEWHERE = re.compile(r"as `(\w+)`")
TOTAL = re.compile(r"^\| \*\*total\*\* \| \| \| \| \*\*(\S+)\*\* \|$", re.MULTILINE)
TITLES = (
    *("Cached tokens", "Reasoning tokens", "Batch price", "Long context", "Router fallback", "Retry"),
    *("Stream cut off", "Embeddings", "Images", "Audio", "Agent", "One event per token type"),
    "One event, several calls",
)


@dataclass(frozen=True)
class Case:
    """One of the page: its events as lines, its catalog, the table of its bill, and what it declares of its own."""

    title: str
    events: tuple[str, ...]
    catalog: CatalogFile
    bill: str
    own: Mapping[str, Any]


def parts() -> Iterator[tuple[str, str]]:
    """(Title, text) of each part of the page; what stands before the first has no title."""
    first, *rest = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    yield "", first
    for part in rest:
        title, _, text = part.partition("\n")
        yield title, text


def shown(text: str) -> list[tuple[str, str]]:
    """Language and text of each block that a part of the page has."""
    return [(block.language, block.text) for block in blocks_in(text, PAGE.name)]


def cases() -> list[Case]:
    found = []
    for title, text in list(parts())[1:]:
        *own, (json_lines, events), (in_yaml, catalog) = shown(text)
        assert (json_lines, in_yaml) == ("json", "yaml")
        found.append(Case(title, tuple(events.splitlines()), parse_catalog(catalog), text, declared(own)))
    return found


def declared(own: list[tuple[str, str]]) -> Mapping[str, Any]:
    """A contract, and the configuration that names its file; a part that shows neither declares nothing of its own."""
    if not own:
        return {}
    (json_document, contract), (in_yaml, configuration) = own
    assert (json_document, in_yaml) == ("json", "yaml")
    given = yaml.safe_load(configuration)
    [file] = given.pop("contracts")
    assert f"`{file}`" in TEXT
    return {**given, "contracts": (json.loads(contract),)}


def stack(own: Mapping[str, Any]) -> Stack:
    """What the page says is configured, beside what a new installation has; where a case has its `own`, that alone."""
    [(language, text)] = shown(next(parts())[1])
    given = yaml.safe_load(text)
    assert (language, given.pop("jobs")) == ("yaml", {})
    attributes = tuple(given.pop("price_attributes"))
    return Stack(**own) if own else Stack(price_attributes=attributes, **given)


def number(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def lines(bill: str) -> dict[tuple[str, str], tuple[Decimal, Decimal, str]]:
    """By model and meter what the page says was reported, what of it is billed, and the amount as it is written.

    Each product stands there with its factors, and is multiplied here.
    """
    found: dict[tuple[str, str], tuple[Decimal, Decimal, str]] = {}
    for row in ROW.finditer(bill):
        product = PRODUCT.fullmatch(row["billed"])
        quantity = Decimal(0) if product is None else number(product["quantity"])
        if product is None:
            assert ELSEWHERE.fullmatch(row["billed"]), row[0]
        else:
            amount = quantity * number(product["price"]) / number(product["per"] or "1")
            assert f"{amount.normalize():f}" == row["amount"], row[0]
        found[row["model"], row["meter"]] = (number(row["reported"]), quantity, row["amount"])
    assert len(found) == bill.count("| `"), "no row is left out, and none occurs twice"
    return found


def received(events: tuple[str, ...]) -> list[tuple[bytes, datetime]]:
    """Each event as it is sent, received a second after it occurred."""
    second = timedelta(seconds=1)
    return [(event.encode(), datetime.fromisoformat(json.loads(event)["time"]) + second) for event in events]


def bill(database: str, case: Case) -> list[Any]:
    """What `weir usage` lists of a case. Every event is accepted, and `weir catalog apply` would take the catalog."""
    [account] = case.catalog.accounts
    begins = {account.effective_from, *(price.effective_from for price in case.catalog.prices)}
    [since] = begins
    assert since is not None
    configured = stack(case.own)
    assert case.catalog.unknown_plans(set()) == []
    assert case.catalog.undeclared_meters(set(configured.config(JoinsConfig).meters)) == []
    assert case.catalog.unknown_attributes(configured.config(JoinsConfig).attributes) == []
    rows = billed(
        database,
        configured,
        received(case.events),
        account=account.model_dump(include={"account", "plan", "currency", "timezone"}),
        unit_prices={(price.model, price.meter): f"{price.unit_price:f}" for price in case.catalog.prices},
        since=since,
    )
    assert {row["violation"] for row in rows} == {None}
    assert {row["offset"] for row in rows} == set(range(len(case.events)))
    return list(listed(database, UsageQuery(window=Window.MONTH)))


def text_of(amount: Decimal) -> str:
    """Every digit of it, without zeros behind the last."""
    return f"{amount.normalize():f}" if amount else "0"


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.title)
def test_each_case_bills_the_amounts_of_its_page(database: str, case: Case) -> None:
    rows = bill(database, case)
    found = {
        (row["model"], row["meter"]): (row["quantity"], row["billed_quantity"], text_of(row["amount"])) for row in rows
    }
    assert found == lines(case.bill)
    assert {(row["account"], row["currency"], row["unpriced_quantity"]) for row in rows} == {("acme", "USD", 0)}
    assert TOTAL.findall(case.bill) == [text_of(sum((row["amount"] for row in rows), Decimal(0)))]


def test_the_page_has_the_usual_cases() -> None:
    assert tuple(case.title for case in cases()) == TITLES


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.title)
def test_each_price_of_a_product_stands_in_the_catalog_of_its_case(case: Case) -> None:
    """A line names the price as the catalog writes it, not as what one unit costs."""
    prices = {meter: {p.unit_price for p in case.catalog.prices if p.meter == meter} for _, meter in lines(case.bill)}
    for row in ROW.finditer(case.bill):
        if (product := PRODUCT.fullmatch(row["billed"])) is not None:
            assert number(product["price"]) / number(product["per"] or "1") in prices[row["meter"]], row[0]
        else:
            [other] = ELSEWHERE.findall(row["billed"])
            assert (row["model"], other) in lines(case.bill)
