"""The prices of the truth that are not of one name each are those of the rule: by prefix, by condition, by alias."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from catalog.file import CatalogFile
from metering.price_models import PricedModels
from metering.pricing import Version
from tests.rules.test_traffic_truth import POLICY, START_MS, large
from tests.specifications.pricing import price_as_of
from traffic.attributes import CONTEXT, LONG, MAX_SHORT_TOKENS, OPERATION, PRICE_ATTRIBUTES, SHORT, attributes_of
from traffic.bills import live_bill
from traffic.catalog import Catalog
from traffic.generate import Traffic, catalog_of
from traffic.instants import instant_of
from traffic.late_catalog import ENDED_ALIAS, LATE_ALIAS, Late, late_changes
from traffic.names import BANDED_NAMES, NAMES
from traffic.script import Outcome

Versions = dict[tuple[str, str, str, str], list[Version[Any]]]
SAID: tuple[Mapping[str, str], ...] = (
    {},
    {CONTEXT: SHORT},
    {CONTEXT: LONG},
    {OPERATION: "chat"},
    {CONTEXT: LONG, OPERATION: "chat"},
    {CONTEXT: SHORT, OPERATION: "embeddings"},
)
ALIAS = ("requests", "XXX")
KEY = ("plan", "model", "meter", "currency")


def stored(late: Late, *, is_after: bool) -> Versions:
    """The versions of all prices and aliases, as the catalog has them."""
    versions: Versions = defaultdict(list)
    lsn = 0
    for file in [*late.before.files(), *([late.file] if is_after else [])]:
        for row in CatalogFile.model_validate(file).rows("prices"):
            price: Any = row
            lsn += 1
            key = price.plan, price.model, price.meter, price.currency
            versions[key].append(Version(lsn, price.effective_from, price.unit_price))
    if is_after:
        for deletion in (each for each in late.deletions if each.table == "prices"):
            lsn += 1
            plan, model, meter, currency = (deletion.key[name] for name in KEY)
            key = plan, model, meter, currency
            begins = datetime.fromisoformat(deletion.key["effective_from"])
            versions[key].append(Version(lsn, begins, None, instant_of(late.gone_ms)))
    return versions


class Rule:
    """Which price holds, by what the applications are built on."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._models = PricedModels.among({model for _, model, *_ in versions})

    def price(self, key: tuple[str, str, str, str], at_ms: int, said: Mapping[str, str]) -> Any:
        """The version of a reported model that holds; None: none does."""
        plan, model, meter, currency = key
        aliases = [
            (found.effective_from, each.aliased)
            for each in self._models.aliases.get(model, ())
            if (found := self._as_of((plan, each.text, *ALIAS), at_ms)) is not None
        ]
        aliased = max(aliases)[1] if aliases else None
        for text in self._models.candidates(model, said, aliased):
            if (found := self._as_of((plan, text, meter, currency), at_ms)) is not None:
                return found
        return None

    def _as_of(self, key: Any, at_ms: int) -> Version[Any] | None:
        return price_as_of(self._versions.get(key, []), instant_of(at_ms), 10**9)


def accounts_by_contract(catalog: Catalog) -> dict[tuple[str, str], str]:
    """An account of each plan and currency, whose contract never changes."""
    return {
        (str(account.contracts[0].plan), str(account.contracts[0].currency)): name
        for name, account in catalog.accounts.items()
        if len(account.contracts) == 1 and name.startswith("acct-0")
    }


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("knows_attributes", [True, False])
@pytest.mark.parametrize("is_after", [False, True])
def test_differential_prices_by_other_names_are_those_of_the_rule(*, knows_attributes: bool, is_after: bool) -> None:
    catalog = catalog_of(7, START_MS, POLICY.priced, knows_attributes=knows_attributes)
    late = late_changes(catalog)
    state, rule = (late.after if is_after else late.before), Rule(stored(late, is_after=is_after))
    met: Counter[bool] = Counter()
    for (plan, currency), account in accounts_by_contract(state).items():
        for model in (*NAMES, LATE_ALIAS, ENDED_ALIAS, "aurora-nano", "gale", "unknown"):
            begins = (*state.changes(account, model), late.gone_ms)
            for at_ms in {at + by for at in begins for by in (-1, 0, 1)} | {START_MS}:
                for meter in state.meters:
                    for said in SAID:
                        theirs = rule.price((plan, model, meter, currency), at_ms, said)
                        ours = state.price(account, model, meter, at_ms, said)
                        known = ours and (ours.unit_price, instant_of(ours.effective_from_ms))
                        assert known == (theirs and (theirs.value, theirs.effective_from)), (model, meter, at_ms, said)
                        met[ours is None] += 1
    assert min(met[True], met[False]) > 500


def test_a_band_includes_its_bound_and_excludes_unreported_quantities() -> None:
    counts = (0, MAX_SHORT_TOKENS, MAX_SHORT_TOKENS + 1)
    assert [attributes_of({}, {"input_tokens": n})[CONTEXT] for n in counts] == [SHORT, SHORT, LONG]
    assert attributes_of({"status": "completed"}, {"input_tokens": None, "output_tokens": 5}) == {}
    assert attributes_of({OPERATION: "chat"}, {}) == {OPERATION: "chat"}
    assert [next(iter(each)) if isinstance(each, dict) else each for each in PRICE_ATTRIBUTES] == [OPERATION, CONTEXT]


def simpler(traffic: Traffic, **less: Any) -> Traffic:
    """The same traffic with a truth that knows less of prices."""

    def of(catalog: Catalog) -> Catalog:
        known = {"prices": catalog.prices, "aliases": catalog.aliases, "ends_ms": catalog.ends_ms, **less}
        return Catalog(catalog.tag, catalog.made_ms, tuple(catalog.accounts.values()), **known)

    late = traffic.late
    return replace(traffic, late=replace(late, before=of(late.before), after=of(late.after)))


def prices_of(traffic: Traffic, outcome: Outcome) -> Any:
    bill = live_bill(traffic, outcome)
    return bill.currency, frozenset((line.meter, line.price) for line in bill.lines)


def test_each_of_prefixes_conditions_and_aliases_decides_what_some_outcome_costs() -> None:
    traffic, _ = large()
    every = traffic.late.before.prices
    by_kind = {
        "prefixes": simpler(traffic, prices=tuple(price for price in every if not price.model.endswith("*"))),
        "conditions": simpler(traffic, prices=tuple(price for price in every if not price.conditions)),
        "aliases": simpler(traffic, aliases=()),
    }
    named = [outcome for outcome in traffic.outcomes if outcome.model in NAMES]
    for kind, known in by_kind.items():
        others = [outcome for outcome in named if prices_of(known, outcome) != prices_of(traffic, outcome)]
        assert len(others) > 10, kind
        assert len(others) < len(named), kind
    in_bands = {(o.model, attributes_of(o.texts, o.reported).get(CONTEXT)) for o in named if o.outcome == "matched"}
    assert in_bands >= {(model, band) for model in BANDED_NAMES for band in (SHORT, LONG)}
