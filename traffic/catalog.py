"""The catalog of a run: accounts, prices and aliases, what is in force when, and the files that say so.

Prices change within the hour, one is announced for later, one account in eight changes its plan, one its currency. The
file is applied in two steps, because an account is one row: the second step carries the changed contracts, prices that
are dated before others that are known, and prices that were wrong and are corrected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeVar

from traffic.instants import rfc3339

CURRENCIES = ("USD", "EUR")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Chatham")
PLANS = ("starter", "team", "enterprise")
FAMILIES = ("aurora", "basalt", "cirrus", "delphi", "ember", "fjord")
SIZES = ("nano", "small", "base", "large", "max")
UNPRICED_MODEL = "aurora-preview"
HOT_MODELS = ("aurora-nano", "basalt-small")
"""Their prices change while the traffic's own minutes pass."""
BACKDATED_MODEL = "cirrus-small"
PUT_RIGHT_MODEL = "basalt-nano"
WRONG_BY = Decimal("0.0000000007")

LONG_AGO_MS = 1_577_836_800_000  # 2020-01-01
CHANGE_BEFORE_MS = 2_000_000
HOT_CHANGE_BEFORE_MS = 60_000
ANNOUNCED_AFTER_MS = 7_200_000
BACKDATED_AFTER_MS = 86_400_000


@dataclass(frozen=True)
class Contract:
    """The plan and the currency of an account from an instant on; None for both: it is deleted."""

    effective_from_ms: int
    plan: str | None
    currency: str | None


@dataclass(frozen=True)
class Account:
    """A customer. `contracts` stand oldest first; the first holds from the beginning of time."""

    account: str
    name: str
    timezone: str
    contracts: tuple[Contract, ...]

    def contract_at(self, event_ms: int) -> Contract:
        """The contract in force at an event."""
        return next((c for c in reversed(self.contracts) if c.effective_from_ms <= event_ms), self.contracts[0])


Conditions = tuple[tuple[str, str], ...]
"""Attributes of events and the value of each, by attribute."""
ANY = "*"
"""At the end of a price's model: whatever follows."""


@dataclass(frozen=True)
class Price:
    """What one unit costs from `effective_from_ms` until the next price of the same key.

    A model that ends with ANY is every model that begins so; all `conditions` must hold for an event.
    """

    plan: str
    model: str
    meter: str
    currency: str
    effective_from_ms: int
    unit_price: Decimal
    conditions: Conditions = ()


@dataclass(frozen=True)
class Alias:
    """A name that has the prices of a model on a plan, from `effective_from_ms` until its next alias."""

    plan: str
    name: str
    model: str
    effective_from_ms: int


Version = TypeVar("Version", Price, Alias)


class Catalog:
    """Accounts and prices, and what is in force when."""

    def __init__(
        self,
        tag: str,
        made_ms: int,
        accounts: tuple[Account, ...],
        prices: tuple[Price, ...],
        *,
        special: tuple[Price, ...] = (),
        aliases: tuple[Alias, ...] = (),
        plans: tuple[str, ...] = PLANS,
        ends_ms: Mapping[Price | Alias, int] | None = None,
    ) -> None:
        """`special`: prices that are not each of one model; `ends_ms`: since when what was deleted is none."""
        self.tag = tag
        self.made_ms = made_ms
        self.plans = plans
        self.accounts = {account.account: account for account in accounts}
        self.prices = (*prices, *special)
        self.special = special
        self.aliases = aliases
        self.models = tuple(dict.fromkeys(price.model for price in prices))
        """Those that anybody calls; who calls by other names is up to `scenarios.names`."""
        self.meters = tuple(dict.fromkeys(price.meter for price in prices))
        self.ends_ms = dict(ends_ms or {})
        self._by_key: dict[tuple[str | None, str, str, str | None], dict[Conditions, list[Price]]] = {}
        begun = (price for price in self.prices if not self._has_ended(price, price.effective_from_ms))
        for price in sorted(begun, key=lambda p: (-len(p.conditions), p.effective_from_ms)):
            of_key = self._by_key.setdefault((price.plan, price.model, price.meter, price.currency), {})
            of_key.setdefault(price.conditions, []).append(price)
        self._aliases: dict[tuple[str | None, str], list[Alias]] = {}
        for alias in sorted(aliases, key=lambda alias: alias.effective_from_ms):
            if not self._has_ended(alias, alias.effective_from_ms):
                self._aliases.setdefault((alias.plan, alias.name), []).append(alias)
        named = {price.model for price in self.prices if price.model.endswith(ANY)}
        self._prefixes = sorted(named, key=len, reverse=True)

    @property
    def unknown_account(self) -> str:
        """An account of this run that the catalog does not have."""
        return f"acct-unknown-{self.tag}"

    def timezone(self, account: str) -> str:
        """The zone of an account; UTC for one that the catalog does not have."""
        return self.accounts[account].timezone if account in self.accounts else "UTC"

    def currency(self, account: str, event_ms: int) -> str | None:
        """What an account pays in at an event; None for one that the catalog does not have."""
        return self.accounts[account].contract_at(event_ms).currency if account in self.accounts else None

    def price(
        self, account: str, model: str | None, meter: str, event_ms: int, attributes: Mapping[str, str] | None = None
    ) -> Price | None:
        """The price in force at an event with these attributes; None when there is none.

        The model's own is asked first, then those of how it begins, the longest first, then those of the model that it
        is an alias of. Of one name the price with the most conditions that hold counts; of the same conditions the last
        that had begun, unless it has ended.
        """
        if account not in self.accounts or model is None:
            return None
        contract = self.accounts[account].contract_at(event_ms)
        other = self._aliased(contract.plan, model, event_ms)
        for name in (*self._names(model), *(() if other is None else self._names(other))):
            of_key = self._by_key.get((contract.plan, name, meter, contract.currency), {})
            for conditions, versions in of_key.items():
                is_for_it = all((attributes or {}).get(column) == value for column, value in conditions)
                if is_for_it and (price := self._in_force(versions, event_ms)) is not None:
                    return price
        return None

    def _names(self, model: str) -> Iterator[str]:
        """By which its prices may be given: its own, and how it begins."""
        yield model
        yield from (prefix for prefix in self._prefixes if model.startswith(prefix.removesuffix(ANY)))

    def _aliased(self, plan: str | None, model: str, event_ms: int) -> str | None:
        """The model whose prices a name has besides its own."""
        alias = self._in_force(self._aliases.get((plan, model), ()), event_ms)
        return None if alias is None else alias.model

    def _in_force(self, versions: Sequence[Version], event_ms: int) -> Version | None:
        """Of versions, in the order in which they begin, the last that had begun, unless it has ended."""
        begun = next((version for version in reversed(versions) if version.effective_from_ms <= event_ms), None)
        return None if begun is None or self._has_ended(begun, event_ms) else begun

    def _has_ended(self, version: Price | Alias, at_ms: int) -> bool:
        return version in self.ends_ms and self.ends_ms[version] <= at_ms

    @lru_cache(maxsize=10_000)  # noqa: B019  (one catalog lives as long as the run)
    def changes(self, account: str, model: str) -> tuple[int, ...]:
        """Every instant at which what this account pays for this model may change."""
        contracts = self.accounts[account].contracts if account in self.accounts else ()
        found: list[Price | Alias] = []
        for contract in contracts:
            aliases = self._aliases.get((contract.plan, model), [])
            models = (model, *(alias.model for alias in aliases))
            names = {name for priced in models for name in self._names(priced)}
            found += [*aliases, *self._known(contract, names)]
        ends = (self.ends_ms[version] for version in found if version in self.ends_ms)
        begins = (version.effective_from_ms for version in found)
        return tuple(sorted({*begins, *ends, *(contract.effective_from_ms for contract in contracts)}))

    def _known(self, contract: Contract, names: Collection[str]) -> Iterator[Price]:
        """Every price that these names have, or had, under a contract."""
        for name in names:
            for meter in self.meters:
                for versions in self._by_key.get((contract.plan, name, meter, contract.currency), {}).values():
                    yield from versions

    def files(self) -> list[dict[str, list[dict[str, Any]]]]:
        """The catalog as two catalog files, to be applied in this order."""
        first = {
            "plans": [{"plan": f"{plan}-{self.tag}", "name": plan.title()} for plan in self.plans],
            "accounts": [account_row(account, account.contracts[0]) for account in self.accounts.values()],
            "prices": [
                price_row(replace(price, unit_price=price.unit_price + WRONG_BY) if _is_put_right(price) else price)
                for price in self.prices
                if not _is_backdated(price)
            ],
            "aliases": [alias_row(alias) for alias in self.aliases],
        }
        changed = {
            "accounts": [
                account_row(account, contract)
                for account in self.accounts.values()
                for contract in account.contracts[1:]
            ],
            "prices": [price_row(price) for price in self.prices if _is_backdated(price) or _is_put_right(price)],
        }
        return [first, changed]


def _is_backdated(price: Price) -> bool:
    """Made known after one that begins later."""
    return price.model == BACKDATED_MODEL and price.effective_from_ms == LONG_AGO_MS + BACKDATED_AFTER_MS


def _is_put_right(price: Price) -> bool:
    """Applied wrong first, and then as it is, from the same instant on."""
    return price.model == PUT_RIGHT_MODEL


def price_row(price: Price) -> dict[str, Any]:
    """A price as it stands in a catalog file."""
    return {
        "plan": price.plan,
        "model": price.model,
        "meter": price.meter,
        "unit_price": f"{price.unit_price:f}",
        "currency": price.currency,
        "effective_from": rfc3339(price.effective_from_ms),
        **({"conditions": dict(price.conditions)} if price.conditions else {}),
    }


def alias_row(alias: Alias) -> dict[str, Any]:
    """An alias as it stands in a catalog file."""
    return {
        "plan": alias.plan,
        "alias": alias.name,
        "model": alias.model,
        "effective_from": rfc3339(alias.effective_from_ms),
    }


def account_row(account: Account, contract: Contract) -> dict[str, Any]:
    """One of the contracts of an account as it stands in a catalog file."""
    return {
        "account": account.account,
        "name": account.name,
        "plan": contract.plan,
        "currency": contract.currency,
        "timezone": account.timezone,
        "effective_from": rfc3339(contract.effective_from_ms),
    }
