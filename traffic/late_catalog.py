"""Catalog changes that are told after events which they concern: contracts, prices and aliases dated back, and
deletions.

What was decided before stays as it was; what is decided after has them. A price that is deleted ends at that moment,
and the one before it does not go on; one that had not begun never does. So each thing has two states, `before` and
`after`, written down side by side, and a way from one to the other: rows that are deleted, then a catalog file.

They date from hours before the traffic (`GONE_MS` and ten minutes around it), and concern accounts and models of their
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from traffic.catalog import (
    CURRENCIES,
    LONG_AGO_MS,
    PLANS,
    Account,
    Alias,
    Catalog,
    Contract,
    Price,
    account_row,
    alias_row,
    price_row,
)
from traffic.drawn_catalog import drawn_price
from traffic.instants import rfc3339
from traffic.placement import Lags

FIRST_MS, LAST_MS = 7_500_000, 5_700_000
"""Events that late changes concern occurred within these times before the catalog was made, or now."""
GONE_MS = 6_600_000
EITHER_SIDE_MS = 600_000
LAGS = Lags(LAST_MS, FIRST_MS + 600_000)
"""What the events of then lag, if telling the changes takes less than ten minutes."""
NOBODY: tuple[None, None] = (None, None)
"""The plan and currency of an account that is deleted."""
TRIAL = "trial"
LATE_ALIAS, ENDED_ALIAS = "late-alias", "late-alias-ended"


@dataclass(frozen=True)
class Deletion:
    """A row that is deleted from a table of the catalog; `key` is the whole of its key."""

    table: str
    key: dict[str, str]


@dataclass(frozen=True)
class Place:
    """Where an event meets a late change. `account` None: of any account."""

    account: str | None
    model: str
    borders_ms: tuple[int, ...]


@dataclass(frozen=True)
class Late:
    """The whole catalog before and after the late changes, and these."""

    before: Catalog
    after: Catalog
    gone_ms: int
    deletions: tuple[Deletion, ...]
    file: dict[str, list[dict[str, Any]]]
    places: tuple[Place, ...]


@dataclass(frozen=True)
class _Changed:
    """The states of one account, each the contracts from when on: (instant, plan, currency)."""

    name: str
    before: tuple[tuple[int, str | None, str | None], ...]
    after: tuple[tuple[int, str | None, str | None], ...]
    is_deleted: bool = False
    timezone: str = "UTC"


def late_changes(catalog: Catalog) -> Late:
    """Late changes beside a catalog; the same catalog has the same."""
    rng, tag = Random(f"late {catalog.tag}"), catalog.tag
    gone_ms = catalog.made_ms - GONE_MS
    earlier_ms, later_ms = gone_ms - EITHER_SIDE_MS, gone_ms + EITHER_SIDE_MS
    model = rng.choice(catalog.models)
    starter, enterprise = (LONG_AGO_MS, "starter", "USD"), ("enterprise", "EUR")
    tried = (LONG_AGO_MS, TRIAL, "USD"), (later_ms, "starter", "USD")
    changed = (
        _Changed("late", (), (starter,), timezone="Asia/Kolkata"),
        _Changed("moved", (starter,), (starter, (earlier_ms, *enterprise))),
        _Changed("deleted", (starter,), (starter, (gone_ms, *NOBODY)), is_deleted=True),
        _Changed("again", (starter,), (starter, (gone_ms, *NOBODY), (later_ms, *enterprise)), is_deleted=True),
        # The second life of an account takes the place of the first from its own time on.
        _Changed("replaced", (starter,), (starter, (earlier_ms, *enterprise)), is_deleted=True),
        _Changed("tried", tried, tried),
    )
    prices = {
        name: _prices(rng, catalog, name, since_ms)
        for name, since_ms in (
            *(("late-price", LONG_AGO_MS), ("late-dearer", earlier_ms), ("late-ended", earlier_ms)),
            *(("late-unbegun", later_ms), ("late-gone", LONG_AGO_MS), ("late-put-again", earlier_ms)),
        )
    }
    first = {
        name: _prices(rng, catalog, name, LONG_AGO_MS) for name in prices if name not in ("late-price", "late-gone")
    }
    again = _prices(rng, catalog, "late-put-again", earlier_ms)
    trial = tuple(
        Price(f"{TRIAL}-{tag}", "late-tried", meter, "USD", LONG_AGO_MS, drawn_price(rng, meter))
        for meter in catalog.meters
    )
    aliases = {
        name: tuple(Alias(f"{plan}-{tag}", name, model, earlier_ms) for plan in PLANS)
        for name in (LATE_ALIAS, ENDED_ALIAS)
    }
    common = (*catalog.prices, *(price for known in first.values() for price in known))
    ended = (*prices["late-ended"], *prices["late-unbegun"], *prices["late-gone"], *trial)
    deleted = (*ended, *prices["late-put-again"])
    new = (*prices["late-price"], *prices["late-dearer"], *again)
    before, after = (
        tuple(_account(tag, account, getattr(account, state)) for account in changed if getattr(account, state))
        for state in ("before", "after")
    )
    regular = tuple(catalog.accounts.values())
    return Late(
        before=Catalog(
            tag,
            catalog.made_ms,
            (*regular, *before),
            (*common, *deleted),
            aliases=(*catalog.aliases, *aliases[ENDED_ALIAS]),
            plans=(*PLANS, TRIAL),
        ),
        after=Catalog(
            tag,
            catalog.made_ms,
            (*regular, *after),
            (*common, *ended, *new),
            aliases=(*catalog.aliases, *aliases[LATE_ALIAS], *aliases[ENDED_ALIAS]),
            ends_ms=dict.fromkeys((*ended, *aliases[ENDED_ALIAS]), gone_ms),
        ),
        gone_ms=gone_ms,
        deletions=(
            *(Deletion("accounts", {"account": f"acct-{a.name}-{tag}"}) for a in changed if a.is_deleted),
            *(Deletion("prices", _key(price)) for price in deleted),
            *(Deletion("prices", _key_of_alias(alias)) for alias in aliases[ENDED_ALIAS]),
            Deletion("plans", {"plan": f"{TRIAL}-{tag}"}),
        ),
        file={
            "accounts": [account_row(account, account.contracts[-1]) for account in after if _is_told(account, before)],
            "prices": [price_row(price) for price in new],
            "aliases": [alias_row(alias) for alias in aliases[LATE_ALIAS]],
        },
        places=(
            *(Place(f"acct-{a.name}-{tag}", model, _begins(a)) for a in changed if a.name != "tried"),
            Place(f"acct-tried-{tag}", "late-tried", (gone_ms, later_ms)),
            *(Place(None, name, (earlier_ms,)) for name in ("late-price", "late-dearer", "late-put-again")),
            *(Place(None, name, (gone_ms,)) for name in ("late-ended", "late-gone")),
            Place(None, "late-unbegun", (later_ms,)),
            Place(None, LATE_ALIAS, (earlier_ms,)),
            Place(None, ENDED_ALIAS, (gone_ms,)),
        ),
    )


def _is_told(account: Account, before: tuple[Account, ...]) -> bool:
    """Whether its last contract stands in the late file: it has one, and that is not known yet."""
    return account.contracts[-1].plan is not None and account not in before


def _begins(changed: _Changed) -> tuple[int, ...]:
    return tuple(sorted({since_ms for since_ms, *_ in changed.after if since_ms != LONG_AGO_MS}))


def _account(tag: str, changed: _Changed, contracts: tuple[tuple[int, str | None, str | None], ...]) -> Account:
    return Account(
        account=f"acct-{changed.name}-{tag}",
        name=f"Customer {changed.name}",
        timezone=changed.timezone,
        contracts=tuple(Contract(since, plan and f"{plan}-{tag}", currency) for since, plan, currency in contracts),
    )


def _prices(rng: Random, catalog: Catalog, model: str, since_ms: int) -> tuple[Price, ...]:
    """Of one model, for each plan, meter and currency."""
    return tuple(_each_price(rng, catalog, model, since_ms))


def _each_price(rng: Random, catalog: Catalog, model: str, since_ms: int) -> Iterator[Price]:
    for plan in PLANS:
        for meter in catalog.meters:
            for currency in CURRENCIES:
                yield Price(f"{plan}-{catalog.tag}", model, meter, currency, since_ms, drawn_price(rng, meter))


def _key(price: Price) -> dict[str, str]:
    return {
        "plan": price.plan,
        "model": price.model,
        "meter": price.meter,
        "currency": price.currency,
        "effective_from": rfc3339(price.effective_from_ms),
    }


def _key_of_alias(alias: Alias) -> dict[str, str]:
    """An alias is a row among the prices, as docs/decisions/0058 has it."""
    row = {"plan": alias.plan, "model": f'{alias.name}{{"=":"{alias.model}"}}'}
    return {**row, "meter": "requests", "currency": "XXX", "effective_from": rfc3339(alias.effective_from_ms)}
