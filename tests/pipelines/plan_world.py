"""What plans cost beside usage, as the test that changes the catalog knows it.

The oracle is told what the test did to the catalog, walks each day of an account's calendar, and adds up fractions: it
reads neither the statements nor `metering.plan_terms`.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from psycopg.types.json import Jsonb

from metering.invoices import Rounding
from metering.plan_terms import PLAN_MODEL
from tests.pipelines.billing import Price
from tests.pipelines.closing import Books, books_of

BEGINS = datetime(2026, 10, 1, tzinfo=UTC)
PRICES = {"basic": Price(7, Decimal("0.01")), "pro": Price(8, Decimal("0.002"))}
DEARER = {"basic": Price(11, Decimal("0.0301")), "pro": Price(12, Decimal("0.000000000007"))}
LATER = datetime(2100, 1, 1, tzinfo=UTC)
"""Of closes after whatever the database's clock says, so that nothing of the catalog has changed since."""
MONTHS = [date(2026, 10, 1), date(2026, 11, 1), date(2026, 12, 1), date(2027, 1, 1)]
ZONES = {"a": "UTC", "b": "Asia/Tokyo", "c": "America/Lima", "d": "Europe/Berlin"}


class Setting(NamedTuple):
    """When and where a test takes place, and in which money: `months` follow each other, the first begins at `begins`
    in UTC. `decimals`: of the currency.
    """

    begins: datetime = BEGINS
    months: tuple[date, ...] = tuple(MONTHS)
    zones: tuple[tuple[str, str], ...] = tuple(ZONES.items())
    currency: str = "EUR"
    decimals: int = 2
    rounding: Rounding = Rounding.HALF_EVEN

    def rounded(self, amount: Fraction) -> Fraction:
        """To the currency's smallest unit, by the definition of half-even and of half-up (away from 0)."""
        if self.rounding is Rounding.HALF_EVEN:
            return Fraction(round(amount * 10**self.decimals), 10**self.decimals)
        away = (abs(amount) * 10**self.decimals * 2 + 1) // 2
        return Fraction(away if amount > 0 else -away, 10**self.decimals)


USUAL = Setting()


def books_with_plans(database: str) -> Iterator[Books]:
    """Books whose plans `basic` and `pro` have two prices each."""
    for found in books_of(database):
        with found.connection.transaction():
            for plan, price in PRICES.items():
                found.connection.execute("INSERT INTO catalog.plans (plan, name) VALUES (%s, %s)", [plan, plan])
                rung(found, price, plan)
                rung(found, DEARER[plan], plan)
        yield found


def rung(books: Books, price: Price, plan: str) -> None:
    """As joins stores each version where a plan has terms."""
    books.connection.execute(
        "INSERT INTO price_ladders VALUES (%s, %s, 'claude', 'input_tokens', 'EUR', %s, %s, NULL)",
        [price.version, plan, BEGINS, price.unit_price],
    )


def account(  # noqa: PLR0917  # the columns of a row
    books: Books,
    plan: str = "basic",
    since: datetime = BEGINS,
    name: str = "a",
    zone: str = "UTC",
    currency: str = "EUR",
) -> None:
    """An account, or its change, that holds from `since`."""
    with books.connection.transaction():
        books.connection.execute(
            "INSERT INTO catalog.accounts (account, name, plan, currency, timezone, effective_from)"
            " VALUES (%(name)s, %(name)s, %(plan)s, %(currency)s, %(zone)s, %(since)s) ON CONFLICT (account) DO UPDATE"
            " SET plan = excluded.plan, timezone = excluded.timezone, effective_from = excluded.effective_from",
            {"name": name, "plan": plan, "zone": zone, "since": since, "currency": currency},
        )


def costs(books: Books, plan: str = "basic", since: datetime = BEGINS, currency: str = "EUR", **terms: Any) -> None:
    """What a plan costs from `since` on."""
    with books.connection.transaction():
        books.connection.execute(
            "INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, terms)"
            " VALUES (%s, %s, 'requests', %s, %s, %s) ON CONFLICT (plan, model, meter, currency, effective_from)"
            " DO UPDATE SET terms = excluded.terms",
            [plan, PLAN_MODEL, currency, since, Jsonb({"kind": "plan", **terms})],
        )


class World:
    """What a test does to the catalog and uses, and what that must come to: (account, month, kind, plan) → amount."""

    def __init__(self, seed: int, setting: Setting = USUAL) -> None:
        self.chance = random.Random(seed)
        self.setting = setting
        self.zones = dict(setting.zones)
        self.plan_names = list(PRICES)
        self.plans: dict[str, list[tuple[datetime, str | None]]] = {}
        """None: the account is deleted."""
        self.ended: dict[tuple[str, datetime], datetime] = {}
        """Of terms that were deleted: until when they held."""
        self.terms: defaultdict[str, dict[datetime, dict[str, str]]] = defaultdict(dict)
        self.used: defaultdict[tuple[str, date, str], dict[Price, Fraction]] = defaultdict(dict)

    def terms_of(self, plan: str) -> tuple[str, str]:
        """The plan of the catalog and the currency."""
        return plan, self.setting.currency

    def rounded(self, plan: str, amount: Fraction) -> Fraction:  # noqa: ARG002  # worlds with several currencies
        """An amount under a plan as an invoice has it."""
        return self.setting.rounded(amount)

    def instant(self, latest: datetime) -> datetime:
        """Up to 40 days before `latest`, sometimes on the border of a day."""
        at = latest - timedelta(minutes=self.chance.randint(0, 40 * 1440))
        return max(at.replace(hour=0, minute=0) if self.chance.random() < 0.5 else at, self.setting.begins)

    def document(self) -> dict[str, Any]:
        cents = sorted(self.chance.randint(0, 20_000) for _ in range(2))
        every = {
            "flat_fee": f"{Decimal(self.chance.randint(0, 10**7)).scaleb(-5):f}",
            "minimum_amount": f"{Decimal(cents[0]).scaleb(-2):f}",
            "maximum_amount": f"{Decimal(cents[1]).scaleb(-2):f}",
        }
        names = self.chance.sample(list(every), self.chance.randint(1, 3))
        included = {"input_tokens": f"{Decimal(self.chance.randint(1, 10**10)).scaleb(-6):f}"}
        more = {"included": included} if self.chance.random() < 0.5 else {}
        return {**{name: every[name] for name in names}, **more}

    def change(self, books: Books, now: datetime) -> None:
        """A new plan of an account or new terms of a plan, from now on or backdated."""
        since = self.instant(now)
        if self.chance.random() < 0.5:
            self.plan(books, self.chance.choice(list(self.zones)), self.chance.choice(self.plan_names), since)
        else:
            self.cost(books, self.chance.choice(self.plan_names), since)

    def cost(self, books: Books, plan: str, since: datetime) -> None:
        """New terms of a plan from `since` on."""
        document = self.document()
        name, currency = self.terms_of(plan)
        costs(books, name, since, currency, **document)
        self.terms[plan][since] = document

    def plan(self, books: Books, name: str, plan: str, since: datetime) -> None:
        """An account has a plan from `since` on."""
        account(books, plan, since, name, self.zones[name], self.setting.currency)
        self.plans[name] = [*((at, other) for at, other in self.plans[name] if at < since), (since, plan)]

    def use(self, books: Books, now: datetime) -> None:
        """Usage of now or of up to 40 days ago, at the price of some plan."""
        at, name, plan = self.instant(now), self.chance.choice(list(self.zones)), self.chance.choice(list(PRICES))
        day = at.astimezone(ZoneInfo(self.zones[name])).date()
        if day < self.setting.months[0]:
            return
        quantity = Decimal(self.chance.randint(1, 9_000_000)).scaleb(-3)
        price = self.chance.choice([PRICES[plan], DEARER[plan]])
        currency = self.setting.currency
        books.use(quantity, at=at, price=price, account=name, day=day, delay=now - at, currency=currency)
        used = self.used[name, day.replace(day=1), plan]
        used[price] = used.get(price, Fraction()) + Fraction(quantity)

    def usage(self, name: str, month: date, plan: str, included: Fraction) -> list[Fraction]:
        """What usage under a plan costs, by price: the included units are shared by quantity, in millionths."""
        used = self.used[name, month, plan]
        total = sum(used.values(), Fraction())
        steps = int(min(included, total) * 10**6)
        whole = {price: steps * quantity // total for price, quantity in used.items()}
        rests = {price: steps * quantity / total - whole[price] for price, quantity in used.items()}
        for price in sorted(rests, key=lambda price: (-rests[price], price.version))[: steps - sum(whole.values())]:
            whole[price] += 1
        return [(used[price] - Fraction(whole[price], 10**6)) * Fraction(price.unit_price) for price in used]

    def on(self, name: str, start: datetime, end: datetime) -> tuple[str, dict[str, Any] | None] | None:
        """The first plan with terms of a day, or else its first plan."""
        found: list[tuple[bool, datetime, str, dict[str, Any] | None]] = []
        changes = self.plans[name]
        for (since, plan), until in zip(changes, [at for at, _ in changes[1:]] + [None], strict=True):
            if plan is None:
                continue
            if since < end and (until is None or until > start):
                found.append((True, since, plan, None))
            known = sorted(self.terms[plan].items())
            for (begins, document), ends in zip(known, [*(at for at, _ in known[1:]), None], strict=False):
                first = max(begins, since)
                every = (ends, until, self.ended.get((plan, begins)))
                last = min((at for at in every if at is not None), default=None)
                if first < end and (last is None or last > max(start, first)):
                    found.append((False, first, plan, document))
        best = min(found, key=lambda each: each[:2], default=None)
        return None if best is None else (best[2], best[3])

    def fees(self, name: str, month: date, *, rounds: bool = False) -> dict[tuple[str, str], Fraction]:
        """(kind, plan) → exact amount; or that of lines which are rounded as an invoice rounds them."""
        return {key: amount for key, amount in self.month(name, month, rounds=rounds).items() if key[0] != "usage"}

    def month(self, name: str, month: date, *, rounds: bool = False) -> dict[tuple[str, str], Fraction]:
        """The same, with what the usage of each plan costs beside them (of the kind `usage`)."""

        def rounded(plan: str, amount: Fraction) -> Fraction:
            return self.rounded(plan, amount) if rounds else amount

        zone = ZoneInfo(self.zones[name])
        number = ((month + timedelta(days=31)).replace(day=1) - month).days
        starts = [
            datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
            for day in (month + timedelta(days=place) for place in range(number + 1))
        ]
        sums: dict[str, dict[str, Fraction | None]] = {}
        has_terms = set()
        included: defaultdict[str, Fraction] = defaultdict(Fraction)
        for place in range(number):
            plan, document = self.on(name, starts[place], starts[place + 1]) or (None, None)
            if plan is None:
                continue
            mine = sums.setdefault(plan, dict.fromkeys(("flat_fee", "minimum_amount", "maximum_amount"), Fraction()))
            if document is not None:
                has_terms.add(plan)
            for quantity in (document or {}).get("included", {}).values():
                steps = [Fraction(quantity) * at * 10**6 // number for at in (place, place + 1)]
                included[plan] += Fraction(steps[1] - steps[0], 10**6)
            for amount in mine:
                given_one = (document or {}).get(amount)
                if given_one is not None and mine[amount] is not None:
                    steps = [Fraction(given_one) * at * 10**12 // number for at in (place, place + 1)]
                    mine[amount] += Fraction(steps[1] - steps[0], 10**12)  # type: ignore[operator]
                elif amount == "maximum_amount":
                    mine[amount] = None
        found = {
            ("usage", plan): sum(
                (rounded(plan, amount) for amount in self.usage(name, month, plan, included[plan])), Fraction()
            )
            for plan in self.plan_names
        }
        for plan in has_terms:
            flat, low, high = (sums[plan][amount] for amount in ("flat_fee", "minimum_amount", "maximum_amount"))
            found["flat", plan] = rounded(plan, flat or Fraction())
            total = found["usage", plan] + found["flat", plan]
            if low and total < rounded(plan, low):
                found["minimum", plan] = rounded(plan, low) - total
            elif high is not None and total > rounded(plan, high):
                found["maximum", plan] = rounded(plan, high) - total
        return {key: amount for key, amount in found.items() if amount}

    def quarter(self, books: Books) -> Iterator[date]:
        """Months that ended, each right before its close, with usage and changes that come for them late."""
        begins, months = self.setting.begins, self.setting.months
        for name in self.zones:
            self.plans[name] = []
            self.plan(books, name, self.plan_names[0], begins - timedelta(hours=self.chance.choice([0, 30])))
        self.cost(books, self.plan_names[0], begins)
        left = list(months)
        ends = datetime(months[-1].year, months[-1].month, 1, tzinfo=UTC) + timedelta(days=29)
        at = begins + timedelta(days=5)
        while left:
            if at < ends:
                for _ in range(3):
                    self.use(books, at)
                if self.chance.random() < 0.6:
                    self.change(books, at)
            books.reach(at)
            if at.date() >= (left[0] + timedelta(days=32)).replace(day=4):
                yield left.pop(0)
            at += timedelta(days=4)
