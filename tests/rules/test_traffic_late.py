"""The truth before and after late changes of the catalog is what the rule makes of the changes that are told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from metering.pricing import Version
from tests.rules.test_traffic_truth import POLICY, START_MS, large
from tests.specifications.pricing import account_as_of, price_as_of
from traffic.catalog import Catalog
from traffic.generate import catalog_of
from traffic.instants import instant_of, milliseconds
from traffic.late_catalog import ENDED_ALIAS, LATE_ALIAS, Late, late_changes

Versions = dict[tuple[str, ...], list[Version[Any]]]
PRICE_KEY = ("plan", "model", "meter", "currency")


def told(late: Late) -> tuple[Versions, int]:
    """The versions of every account and price, and the lsn of the first late one."""
    versions: Versions = defaultdict(list)
    lsn = 0
    for key, since, value in early(late):
        lsn += 1
        versions[key].append(Version(lsn, since, value))
    first_late = lsn + 1
    for key, since, value in told_late(late):
        lsn += 1
        is_gone = len(key) > 1 and value is None
        versions[key].append(Version(lsn, since, value, instant_of(late.gone_ms) if is_gone else None))
    return versions, first_late


def early(late: Late) -> Iterator[tuple[tuple[str, ...], datetime, Any]]:
    for file in late.before.files():
        yield from rows(file)


def told_late(late: Late) -> Iterator[tuple[tuple[str, ...], datetime, Any]]:
    for deletion in late.deletions:
        match deletion.table:
            case "accounts":
                yield (deletion.key["account"],), instant_of(late.gone_ms), None
            case "prices":
                key = tuple(deletion.key[name] for name in PRICE_KEY)
                yield key, datetime.fromisoformat(deletion.key["effective_from"]), None
    yield from rows(late.file)


def rows(file: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[tuple[str, ...], datetime, Any]]:
    for row in file["accounts"]:
        yield (row["account"],), datetime.fromisoformat(row["effective_from"]), (row["plan"], row["currency"])
    for row in file["prices"]:
        key = tuple(row[name] for name in PRICE_KEY)
        yield key, datetime.fromisoformat(row["effective_from"]), Decimal(row["unit_price"])


def instants(late: Late, versions: Versions) -> list[int]:
    begins = {milliseconds(version.effective_from) for of_key in versions.values() for version in of_key}
    around = {at + by for at in {*begins, late.gone_ms} for by in (-1, 0, 1)}
    return sorted({*around, late.before.made_ms, late.before.made_ms - 7_000_000})


@pytest.mark.parametrize("seed", [1, 7])
@pytest.mark.parametrize("is_after", [False, True])
def test_differential_contracts_before_and_after_are_those_of_the_rule(seed: int, is_after: bool) -> None:
    late = late_changes(catalog_of(seed, START_MS))
    versions, first_late = told(late)
    state = late.after if is_after else late.before
    decided_lsn = 10**9 if is_after else first_late
    for account in (*late.after.accounts, state.unknown_account):
        for at_ms in instants(late, {(account,): versions.get((account,), [])}):
            rule = account_as_of(versions.get((account,), []), instant_of(at_ms), decided_lsn)
            known = state.accounts[account].contract_at(at_ms) if account in state.accounts else None
            plan = None if known is None else known.plan
            assert (plan, state.currency(account, at_ms)) == ((None, None) if rule is None else rule.value)


@pytest.mark.parametrize("is_after", [False, True])
def test_differential_prices_before_and_after_are_those_of_the_rule(is_after: bool) -> None:
    late = late_changes(catalog_of(7, START_MS, POLICY.priced))
    versions, first_late = told(late)
    state = late.after if is_after else late.before
    decided_lsn = 10**9 if is_after else first_late
    changed = {place.model for place in late.places} - {LATE_ALIAS, ENDED_ALIAS}
    account_of = {account.contracts[-1]: name for name, account in state.accounts.items()}
    checked = 0
    for contract, account in account_of.items():
        for model in changed:
            for meter in state.meters:
                key = (str(contract.plan), model, meter, str(contract.currency))
                for at_ms in instants(late, {key: versions.get(key, [])}):
                    if state.accounts[account].contract_at(at_ms) != contract:
                        continue
                    rule = price_as_of(versions.get(key, []), instant_of(at_ms), decided_lsn)
                    price = state.price(account, model, meter, at_ms)
                    assert (price and price.unit_price) == (rule and rule.value)
                    checked += 1
    assert checked > 500


def prices(catalog: Catalog, account: str, model: str | None, event_ms: int) -> list[Decimal | None]:
    found = (catalog.price(account, model, meter, event_ms) for meter in catalog.meters)
    return [None if price is None else price.unit_price for price in found]


def test_each_late_change_decides_something_for_events_that_came_after_it_and_not_before() -> None:
    traffic, _ = large()
    differs: Counter[str] = Counter()
    for outcome in traffic.outcomes:
        before, after = (
            prices(catalog, outcome.account, outcome.model, outcome.event_ms)
            for catalog in (traffic.late.before, traffic.late.after)
        )
        if before != after:
            concerned = outcome.account if outcome.account not in traffic.catalog.accounts else str(outcome.model)
            differs[f"{concerned.removesuffix(f'-{traffic.catalog.tag}')} {outcome.knows_late}"] += 1
    names = {f"acct-{name}" for name in ("late", "moved", "deleted", "again", "replaced", "tried")}
    names |= {place.model for place in traffic.late.places if place.account is None}
    assert differs.keys() == {f"{name} {knows_late}" for name in names for knows_late in (True, False)}


def test_an_account_is_read_between_its_deletion_and_its_second_creation() -> None:
    traffic, _ = large()
    again = f"acct-again-{traffic.catalog.tag}"
    asked = {
        (outcome.knows_late, catalog.currency(again, outcome.event_ms))
        for outcome in traffic.outcomes
        if outcome.account == again
        for catalog in ([traffic.late.after] if outcome.knows_late else [traffic.late.before])
    }
    assert asked == {(False, "USD"), (True, "USD"), (True, None), (True, "EUR")}


def test_the_beginning_is_sent_before_all_else() -> None:
    traffic, _ = large()
    before = [record.kind == "before_late_catalog" for record in traffic.records]
    assert before == [True] * traffic.sent_before + [False] * (len(before) - traffic.sent_before)
    assert traffic.sent_before > 100
