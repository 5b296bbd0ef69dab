"""The catalog file: plans, accounts, prices, limits and pools as people write them, in YAML or JSON.

It is checked before anything is done.

Numbers are read as the text in the file: through a binary float, a price would change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    computed_field,
    model_validator,
)

from catalog.exact_text import read_as_text
from catalog.file_values import (
    Currency,
    Instant,
    Named,
    Parent,
    PerhapsInstant,
    Tags,
    Text,
    Zone,
    checked_text,
    conditions_in,
    perhaps,
    pool_month,
    priced_model_in,
    several_models_in,
    tiered_kind,
)
from catalog.limit_values import (
    limit_amount,
    limit_every,
    limit_period,
    limit_quantity,
    limit_step,
    perhaps_currency,
    perhaps_dimension,
    perhaps_model,
)
from catalog.unit_price import Per, UnitPrice
from jobs.queries.limits import EVERY_ACCOUNT
from jobs.settings.problems import sentence
from metering.digits import EXACT
from metering.instants import rfc3339
from metering.limits import CALENDAR_PERIODS, rolling_hours
from metering.plan_terms import KIND, PLAN_METER, PLAN_MODEL, PlanTerms
from metering.price_attributes import PriceAttribute
from metering.price_models import ALIAS_CURRENCY, ALIAS_METER, PricedModel
from metering.price_tiers import PriceTerms

MAX_STEPS = 20
MAX_POOLED = 100
"""Accounts of a pool."""
_HOLDS = "plans, accounts, prices, aliases, plan_terms, limits or pools"


class CatalogFileError(ValueError):
    """The file is refused; one line per problem: the field, the value, and what is allowed."""


class Row(BaseModel):
    """What every entry has: no other fields than these."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Plan(Row):
    """What prices are given for."""

    plan: Text
    name: Text


class Account(Row):
    """A customer. Without `effective_from` a change applies from its commit on.

    Tags or a parent that are left out stay unchanged; `tags: {}` and `parent: null` remove them.
    """

    account: Text
    name: Text
    plan: Text
    currency: Currency
    timezone: Zone = "UTC"
    effective_from: PerhapsInstant = None
    tags: Tags = None
    parent: Parent = None


class _PriceKey(Row):
    """What a price is for, from `effective_from` until the next of the same plan, model, meter and currency.

    A model that ends with `*` matches every model with that prefix; `models` in its place is a list of such names, for
    one price of all of them. `conditions` are values that columns of an event must have. All are part of `model`
    (`metering.price_models`).
    """

    plan: Text
    conditions: Annotated[dict[str, str], BeforeValidator(conditions_in), Field(exclude=True)] = {}
    model: Annotated[str, BeforeValidator(priced_model_in)]
    meter: Text
    currency: Currency
    effective_from: Instant

    @model_validator(mode="before")
    @classmethod
    def _of_several_models(cls, price: Any) -> Any:
        return several_models_in(price)

    @property
    def key(self) -> tuple[str, str, str, str, datetime]:
        """The key of a price."""
        return self.plan, self.model, self.meter, self.currency, self.effective_from


class Price(_PriceKey):
    """The cost of one unit. A file may give the price of `per` units; `unit_price` is always of one."""

    kind: Annotated[Literal["unit"], Field(exclude=True)] = "unit"
    per: Annotated[Per, Field(exclude=True)] = 1
    unit_price: UnitPrice


class PriceTier(Row):
    """A tier up to and including `up_to` of the month total; a file may give the price of `per` units."""

    up_to: Annotated[str | None, BeforeValidator(perhaps)] = None
    per: Per = 1
    unit_price: UnitPrice
    flat_price: Annotated[str | None, BeforeValidator(perhaps)] = None


class TieredPrice(_PriceKey):
    """A price that depends on the account's month total of its meter, over all models that it is for.

    `graduated`: each tier prices its own units; `volume`: the tier of the total prices all units; `package`: each
    package of `package_size` that is begun costs `package_price`.
    """

    kind: Annotated[Literal["graduated", "volume", "package"], BeforeValidator(tiered_kind), Field(exclude=True)]
    tiers: Annotated[tuple[PriceTier, ...] | None, Field(exclude=True)] = None
    package_size: Annotated[str | None, Field(exclude=True)] = None
    package_price: Annotated[str | None, Field(exclude=True)] = None

    @model_validator(mode="after")
    def _has_terms(self) -> TieredPrice:
        _ = self.price_terms
        return self

    @property
    def price_terms(self) -> PriceTerms:
        """What it costs. Raises ValueError."""
        given: dict[str, Any] = {"package_size": self.package_size, "package_price": self.package_price}
        tiers = None if self.tiers is None else [_tier(tier) for tier in self.tiers]
        whole = {"kind": self.kind, "tiers": tiers, **given}
        return PriceTerms.of({name: value for name, value in whole.items() if value is not None})

    @computed_field  # type: ignore[prop-decorator]
    @property
    def terms(self) -> dict[str, Any]:
        """As the catalog has them."""
        return self.price_terms.document

    @property
    def per(self) -> int:
        """Of one unit: its tiers say theirs."""
        return 1

    @property
    def unit_price(self) -> None:
        """It has none."""
        return


def _tier(tier: PriceTier) -> dict[str, Any]:
    return {"up_to": tier.up_to, "unit_price": tier.unit_price, "flat_price": tier.flat_price}


def _tag(price: Any) -> str:
    kind = price.get("kind", "unit") if isinstance(price, dict) else getattr(price, "kind", "unit")
    return _UNIT if kind in ("unit", None) else _TIERED


_UNIT, _TIERED = "price of a unit", "price with terms"
"""Tags of the two forms of a price: no part of what messages name."""
AnyPrice = Annotated[Annotated[Price, Tag(_UNIT)] | Annotated[TieredPrice, Tag(_TIERED)], Discriminator(_tag)]


class Alias(Row):
    """A name that has the prices of a model on a plan, from `effective_from` until its next alias, or until it ends.

    It applies where the name has no price of its own.
    """

    plan: Text
    alias: Text
    model: Text
    effective_from: Instant

    @model_validator(mode="after")
    def _names_two_models(self) -> Alias:
        checked_text(self.priced_model.text)
        return self

    @property
    def priced_model(self) -> PricedModel:
        """What it is among the prices."""
        return PricedModel.alias(self.alias, self.model)

    @property
    def row(self) -> Price:
        """As the catalog has it: a row of its prices, which prices nothing."""
        terms = {"meter": ALIAS_METER, "currency": ALIAS_CURRENCY, "unit_price": "0"}
        begins = {"effective_from": rfc3339(self.effective_from)}
        return Price.model_validate({"plan": self.plan, "model": self.priced_model.text, **terms, **begins})


class PlanTermsRow(Row):
    """What having a plan costs a month, from `effective_from` until the next terms of the plan and currency.

    `flat_fee` is added; `minimum_amount` and `maximum_amount` are the least and the most that the plan comes to. So
    much of a meter as `included` says, over all prices of the plan, costs nothing.
    """

    plan: Text
    currency: Currency
    effective_from: Instant
    flat_fee: Annotated[str | None, BeforeValidator(perhaps)] = None
    minimum_amount: Annotated[str | None, BeforeValidator(perhaps)] = None
    maximum_amount: Annotated[str | None, BeforeValidator(perhaps)] = None
    included: dict[str, str] = {}

    @model_validator(mode="after")
    def _has_terms(self) -> PlanTermsRow:
        _ = self.terms
        return self

    @property
    def terms(self) -> PlanTerms:
        """What it costs. Raises ValueError."""
        names = ("flat_fee", "minimum_amount", "maximum_amount")
        return PlanTerms.of(
            {"kind": KIND, **{name: getattr(self, name) for name in names}, "included": self.included or None}
        )

    @property
    def row(self) -> CatalogRow:
        """As the catalog has it: a row of its prices, which prices no usage."""
        return CatalogRow(
            plan=self.plan,
            model=PLAN_MODEL,
            meter=PLAN_METER,
            currency=self.currency,
            effective_from=self.effective_from,
            terms=self.terms.document,
        )


class CatalogRow(Row):
    """A row of the catalog's prices that prices no usage."""

    plan: str
    model: str
    meter: str
    currency: str
    effective_from: datetime
    terms: dict[str, Any]


class Limit(Row):
    """How much of a meter, or of money in a currency, may be used in a day or month of an account's own calendar.

    With both, how much money the usage of the meter may cost.

    Or how much of a meter in the last whole hours of UTC, such as PT24H.
    It is of an account, of each account of a plan, or (`account: "*"`) of each account; of all usage, of one model, or
    of one value of a dimension, as `{team: search}`. It applies from `effective_from` until the next of the same
    account or plan, meter, currency, model, value of a dimension, and period. `steps` are where webhooks are called
    beside the limit itself, and so is each of the first 100 multiples of `every`.
    `quantity: null` or `amount: null` is no limit. Events of its thresholds have its `code`, which decides nothing.
    """

    account: Named = ""
    plan: Named = ""
    meter: Named = ""
    currency: Annotated[str, BeforeValidator(perhaps_currency)] = ""
    model: Annotated[str, BeforeValidator(perhaps_model)] = ""
    dimension: Annotated[tuple[str, str] | None, BeforeValidator(perhaps_dimension)] = None
    period: Annotated[str, AfterValidator(limit_period)]
    quantity: Annotated[str | None, BeforeValidator(limit_quantity)] = None
    amount: Annotated[str | None, BeforeValidator(limit_amount)] = None
    steps: Annotated[tuple[Annotated[str, BeforeValidator(limit_step)], ...], Field(max_length=MAX_STEPS)] = ()
    every: Annotated[str | None, BeforeValidator(limit_every)] = None
    code: Named = ""
    effective_from: Instant

    @model_validator(mode="after")
    def _is_of_one(self) -> Limit:
        if bool(self.account) is bool(self.plan):
            raise ValueError("must be of an account or of a plan")
        if not self.meter and not self.currency:
            raise ValueError("must be of a meter or of a currency")
        if self.currency and self.period != "P1M":
            raise ValueError("of a currency must have period P1M, because only a month has a price with tiers")
        if self.model and self.currency:
            raise ValueError("of a currency must be of all models, because tiers may price several models together")
        if self.dimension and self.currency:
            raise ValueError("of a currency must be of all usage: tiers are of a month, and not of a dimension")
        if self.dimension and rolling_hours(self.period):
            raise ValueError(
                f"of a dimension must have period {' or '.join(CALENDAR_PERIODS)}: hours have no dimensions"
            )
        own, other = ("amount", "quantity") if self.currency else ("quantity", "amount")
        if other in self.model_fields_set:
            hint = "" if self.currency else "; a limit of money also has a currency"
            raise ValueError(f"must have {own}, not {other}: it is of {self.currency or self.meter}{hint}")
        if not self.steps and not self.every and own not in self.model_fields_set:
            raise ValueError(f"must have {own} (null ends a limit), steps or every")
        if self.maximum is None and any(step.endswith("%") for step in (*self.steps, self.every or "")):
            raise ValueError("must have numbers as steps and every: without a limit there are no shares of it")
        if self.every and self.every.endswith("%") and not self.maximum:
            raise ValueError("must have a number as every: a share of 0 is no step")
        return self

    @property
    def maximum(self) -> Decimal | None:
        """The limit; None: there is none."""
        text = self.amount if self.currency else self.quantity
        return None if text is None else Decimal(text)

    @property
    def stored(self) -> dict[str, Any]:
        """The row of `catalog.limits`: steps as numbers, and what is of each account with empty names."""
        row = self.model_dump(mode="json")
        steps = {self._number(step) for step in self.steps}
        every = None if self.every is None else f"{self._number(self.every):f}"
        account = "" if self.account == EVERY_ACCOUNT else self.account
        dimension, value = self.dimension or ("", "")
        of = {"account": account, "dimension": dimension, "dimension_value": value}
        return {**row, **of, "steps": [f"{step:f}" for step in sorted(steps) if step], "every": every}

    def _number(self, step: str) -> Decimal:
        """A step; a share is of the limit."""
        if not step.endswith("%"):
            return Decimal(step)
        return EXACT.multiply(self.maximum or Decimal(0), EXACT.scaleb(Decimal(step[:-1]), -2))


class Pool(Row):
    """Accounts that have one total for tiers and packages: `parent` itself, or below it, by which the pool is called.

    From `first_month` on, before `end_month`, of their calendar. All have one plan, currency and time zone then.
    """

    parent: Text
    accounts: Annotated[tuple[Text, ...], Field(min_length=1, max_length=MAX_POOLED)]
    first_month: Annotated[date | None, BeforeValidator(pool_month)]
    end_month: Annotated[date | None, BeforeValidator(pool_month)] = None

    @model_validator(mode="after")
    def _is_of_months(self) -> Pool:
        if self.first_month is None:
            raise ValueError("must have first_month, such as 2026-10")
        if self.end_month is not None and self.end_month < self.first_month:
            raise ValueError("must have an end_month that is not before its first_month (the same: it never pooled)")
        return self

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Those of `catalog.pools`, one for each account."""
        months = self.model_dump(mode="json", include={"parent", "first_month", "end_month"})
        return [{**months, "account": account} for account in self.accounts]


class CatalogFile(Row):
    """The whole file; each list may be left out."""

    plans: tuple[Plan, ...] = ()
    accounts: tuple[Account, ...] = ()
    prices: tuple[AnyPrice, ...] = ()
    aliases: tuple[Alias, ...] = ()
    plan_terms: tuple[PlanTermsRow, ...] = ()
    limits: tuple[Limit, ...] = ()
    pools: tuple[Pool, ...] = ()

    def rows(self, name: str) -> tuple[Row, ...]:
        """Its rows for a table of the catalog: aliases and the terms of plans are among the prices."""
        if name != "prices":
            return tuple(getattr(self, name))
        aliases = (alias.row for alias in self.aliases)
        return (*self.prices, *aliases, *(terms.row for terms in self.plan_terms))

    def unknown_plans(self, known: set[str]) -> list[str]:
        """One line for each account or price of a plan that neither the file nor `known` has."""
        plans = known | {plan.plan for plan in self.plans}
        named = [(f"accounts.{number}", row.plan) for number, row in enumerate(self.accounts)]
        named += [(f"prices.{number}", row.plan) for number, row in enumerate(self.prices)]
        named += [(f"aliases.{number}", row.plan) for number, row in enumerate(self.aliases)]
        named += [(f"plan_terms.{number}", row.plan) for number, row in enumerate(self.plan_terms)]
        named += [(f"limits.{number}", row.plan) for number, row in enumerate(self.limits) if row.plan]
        return [
            f"{where}.plan is {plan!r}: must be a plan of the file or of the catalog"
            for where, plan in named
            if plan not in plans
        ]

    def unknown_parents(self, known: set[str]) -> list[str]:
        """One line for each parent, and each account of a limit or pool, that neither the file nor `known` has."""
        accounts = known | {row.account for row in self.accounts}
        named = [(f"accounts.{number}.parent", row.parent) for number, row in enumerate(self.accounts)]
        named += [
            (f"limits.{number}.account", row.account)
            for number, row in enumerate(self.limits)
            if row.account != EVERY_ACCOUNT
        ]
        named += [
            (f"pools.{number}.{field}", name)
            for number, row in enumerate(self.pools)
            for field, name in [("parent", row.parent), *(("accounts", account) for account in row.accounts)]
        ]
        return [
            f"{where} is {name!r}: must be an account of the file or of the catalog"
            for where, name in named
            if name and name not in accounts
        ]

    def unknown_attributes(self, known: Iterable[PriceAttribute]) -> list[str]:
        """One line for each condition on a column that the stack does not price by, or on a band that it has not."""
        attributes = {attribute.name: attribute for attribute in known}
        listed = ", ".join(sorted(attributes)) or "none so far"
        problems = []
        for number, row in enumerate(self.prices):
            for column, value in PricedModel.parse(row.model).conditions:
                if column not in attributes:
                    problems.append(
                        f"prices.{number}.conditions names {column}: must be one of price_attributes in the "
                        f"configuration ({listed}); list it there, and start the applications"
                    )
                elif not attributes[column].has(value):
                    bands = ", ".join(dict(attributes[column].bands))
                    problems.append(
                        f"prices.{number}.conditions: {column} is {value}: must be one of its bands ({bands})"
                    )
        return problems

    def undeclared_meters(self, declared: set[str]) -> list[str]:
        """One line for each price or limit of a meter that the stack does not count."""
        named = [(f"prices.{number}", row.meter) for number, row in enumerate(self.prices)]
        named += [
            (f"plan_terms.{number}", meter) for number, row in enumerate(self.plan_terms) for meter in row.included
        ]
        named += [(f"limits.{number}", row.meter) for number, row in enumerate(self.limits) if row.meter]
        return [
            f"{where}.meter is {meter!r}: must be one of {', '.join(sorted(declared))}; the applications "
            "declare others when they start (`meters` in their configuration)"
            for where, meter in named
            if meter not in declared
        ]

    def rolling_limits_of_whole_periods(self, meters: Collection[str]) -> list[str]:
        """One line for each limit of a rolling period whose meter is among these, which bill days or months whole."""
        return [
            f"limits.{number}.period is {row.period!r}: must be one of {', '.join(CALENDAR_PERIODS)}, as {row.meter} "
            "bills a day or month as a whole, and has no hours"
            for number, row in enumerate(self.limits)
            if row.meter in meters and rolling_hours(row.period)
        ]

    def limits_of_dimensions_of_whole_periods(self, meters: Collection[str]) -> list[str]:
        """One line for each limit of a dimension whose meter is among these, which bill days or months whole."""
        return [
            f"limits.{number}.dimension is of {row.meter}: must be left out, as {row.meter} bills a day or month as a "
            "whole, and has no dimensions"
            for number, row in enumerate(self.limits)
            if row.dimension and row.meter in meters
        ]

    def unknown_dimensions(self, known: Collection[str]) -> list[str]:
        """One line for each limit of a dimension that is not among these."""
        listed = ", ".join(sorted(known)) or "none so far"
        return [
            f"limits.{number}.dimension names {row.dimension[0]}: must be one of dimensions in the configuration "
            f"({listed}); list it there, and start the applications"
            for number, row in enumerate(self.limits)
            if row.dimension and row.dimension[0] not in known
        ]


def load_catalog_file(path: Path) -> CatalogFile:
    """The file, checked. Raises CatalogFileError."""
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise CatalogFileError(f"{path} cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise CatalogFileError(f"{path} is not UTF-8: {problem}") from problem
    return parse_catalog(content, str(path))


def parse_catalog(content: str, name: str = "catalog") -> CatalogFile:
    """The catalog in a text, checked; `name` is what the text is called in messages. Raises CatalogFileError."""
    try:
        document = read_as_text(content)
    except ValueError as problem:
        raise CatalogFileError(f"{name} {problem}") from problem
    if document in (None, ""):
        raise CatalogFileError(f"{name} is empty: it must hold {_HOLDS}")
    try:
        catalog = CatalogFile.model_validate(document)
    except ValidationError as error:
        raise CatalogFileError("\n".join(f"{name}: {_sentence(p)}" for p in error.errors())) from error
    if problems := _doubles(catalog):
        raise CatalogFileError("\n".join(f"{name}: {problem}" for problem in problems))
    return catalog


def _doubles(catalog: CatalogFile) -> list[str]:
    lists = {
        "plans": [row.plan for row in catalog.plans],
        "accounts": [row.account for row in catalog.accounts],
        "prices": [", ".join(map(str, row.key)) for row in catalog.prices],
        "aliases": [f"{row.plan}, {row.alias}, {row.effective_from}" for row in catalog.aliases],
        "plan_terms": [f"{row.plan}, {row.currency}, {row.effective_from}" for row in catalog.plan_terms],
        # An account may have the name of a plan.
        "limits": [
            f"{row.account or row.plan}, {' '.join(filter(None, (row.meter, row.currency)))}, {row.period}, "
            f"{row.effective_from}"
            f"{f' of {row.model}' * bool(row.model)}"
            f"{' of ' + ' '.join(row.dimension) if row.dimension else ''}"
            f"{' of a plan' * bool(row.plan)}{' of money' * bool(row.currency)}"
            for row in catalog.limits
        ],
        "pools": [f"{row['account']}, {row['first_month']}" for pool in catalog.pools for row in pool.rows],
    }
    return [
        f"{name} has {key} {count} times; it must occur once"
        for name, keys in lists.items()
        for key, count in Counter(keys).items()
        if count > 1
    ]


def _sentence(problem: Mapping[str, Any]) -> str:
    field = ".".join(str(part) for part in problem["loc"] if part not in (_UNIT, _TIERED)) or "the file"
    is_outermost = problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1
    return sentence(problem, field) + (f": a catalog holds {_HOLDS}" if is_outermost else "")
