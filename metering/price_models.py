"""Which events a price applies to: a model, a prefix of models, or either with conditions on columns.

In the catalog this is one text, the price's `model`: `gpt-4o`, `gpt-4o-2024-*`, or one of them with its conditions as
JSON, `gpt-4o{"operation":"batch"}`. So a price with conditions has versions, an end and an author like any other.

An alias is written the same way: `gpt-4o-latest{"=":"gpt-4o-2024-08-06"}` is not a price; it names the model whose
prices apply.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

MAX_CONDITIONS = 4
ANY = "*"
"""At the end of a model: any suffix."""
BEGINS = '{"'
"""How conditions begin. A model that an event reports and that holds this has no price of its own."""
ALIAS = "="
"""In place of a column: the model whose prices a name has that has none of its own."""
PLAN = "+"
"""In place of a column: a row that says what the plan itself costs (`metering.plan_terms`). No event meets it."""
ALIAS_METER, ALIAS_CURRENCY = "requests", "XXX"
"""An alias is of all meters and currencies. As a row of prices it has these, at 0; XXX is no currency (ISO 4217)."""
Conditions = tuple[tuple[str, str], ...]
"""Columns of events and the value of each, by column; a boolean is `true` or `false`."""


@dataclass(frozen=True, order=True)
class PricedModel:
    """What a price is for. `model` ends with ANY where it is a prefix."""

    model: str
    conditions: Conditions = ()

    @classmethod
    def of(cls, model: str, conditions: Mapping[str, str]) -> PricedModel:
        """With the conditions in one order."""
        return cls(model, tuple(sorted(conditions.items())))

    @classmethod
    def parse(cls, text: str) -> PricedModel:
        """What `text` wrote. Raises ValueError for conditions that are written otherwise: one price has one text."""
        begins = text.find(BEGINS)
        if begins < 0:
            return cls(text)
        try:
            conditions = json.loads(text[begins:])
        except ValueError as error:
            raise ValueError(f"the conditions of {text!r} are no JSON object") from error
        is_fit = isinstance(conditions, dict) and all(isinstance(value, str) for value in conditions.values())
        found = cls.of(text[:begins], conditions) if is_fit else None
        if found is None or found.text != text or not 0 < len(found.conditions) <= MAX_CONDITIONS or not begins:
            raise ValueError(
                f"{text!r} must be a model and 1 to {MAX_CONDITIONS} conditions, texts by column in the order of "
                'their names, without spaces: gpt-4o{"operation":"batch"}'
            )
        return found

    @classmethod
    def alias(cls, name: str, model: str) -> PricedModel:
        """That a name has the prices of a model. Raises ValueError for what is not the name of one model."""
        for text in (name, model):
            if BEGINS in text or text.endswith(ANY):
                raise ValueError(f"{text!r} must be the name of one model, without conditions and {ANY}")
        if name == model:
            raise ValueError(f"{name!r} must be an alias of another model")
        return cls(name, ((ALIAS, model),))

    @property
    def aliased(self) -> str | None:
        """Of an alias the model whose prices it has; None of a price."""
        return dict(self.conditions).get(ALIAS)

    @property
    def prices_usage(self) -> bool:
        """Whether it is a price: no alias, and not the terms of a plan."""
        return not {ALIAS, PLAN} & dict(self.conditions).keys()

    @property
    def text(self) -> str:
        """As the catalog has it."""
        conditions = (
            json.dumps(dict(self.conditions), separators=(",", ":"), ensure_ascii=False) if self.conditions else ""
        )
        return self.model + conditions

    @property
    def is_plain(self) -> bool:
        """Whether it is for all events of one model."""
        return not self.conditions and not self.model.endswith(ANY)

    def names(self, model: str) -> bool:
        """Whether the price applies to a model that an event reports, if its conditions are met."""
        if self.model == model:
            return BEGINS not in model
        return self.model.endswith(ANY) and model.startswith(self.model.removesuffix(ANY))

    def holds(self, attributes: Mapping[str, str | None]) -> bool:
        """Whether an event meets its conditions; a missing value meets none."""
        return all(attributes.get(column) == value for column, value in self.conditions)

    @property
    def rank(self) -> tuple[bool, int, int, str]:
        """Of several prices for an event the lowest rank is tried first.

        That is the model itself, then the longest prefix; within one, the most conditions.
        """
        return self.model.endswith(ANY), -len(self.model), -len(self.conditions), self.text


@dataclass(frozen=True)
class PricedModels:
    """Those of a catalog that are no plain models."""

    every: frozenset[PricedModel] = frozenset()

    @classmethod
    def among(cls, texts: Iterable[str | None]) -> PricedModels:
        """Those among the models of prices. What cannot be read prices nothing."""
        found = set()
        for text in texts:
            try:
                found.add(PricedModel.parse(text or ""))
            except ValueError:
                continue
        return cls(frozenset(priced for priced in found if not priced.is_plain))

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.every)

    @cached_property
    def _by_model(self) -> Mapping[str, list[PricedModel]]:
        found = defaultdict(list)
        for priced in self.every:
            found[priced.model].append(priced)
        return found

    @cached_property
    def values(self) -> Mapping[str, frozenset[str]]:
        """By column the values that some condition asks for."""
        found = defaultdict(set)
        for priced in self.every:
            for column, value in priced.conditions if priced.aliased is None else ():
                found[column].add(value)
        return {column: frozenset(values) for column, values in found.items()}

    @cached_property
    def aliases(self) -> Mapping[str, list[PricedModel]]:
        """By name: the models that it was ever an alias of."""
        found = defaultdict(list)
        for priced in sorted(self.every):
            if priced.aliased is not None:
                found[priced.model].append(priced)
        return found

    def _naming(self, model: str) -> Iterator[PricedModel]:
        prefixes = (model[:length] + ANY for length in range(len(model) + 1))
        for name in dict.fromkeys([model, *prefixes]):
            yield from (priced for priced in self._by_model.get(name, ()) if priced.names(model))

    def of_model(self, model: str | None) -> list[str]:
        """The texts of all prices that may be for any event of a model; its own among them.

        Also its aliases, and the prices of what these name.
        """
        if model is None:
            return []
        aliased = [alias.aliased for alias in self.aliases.get(model, ())]
        found = [] if BEGINS in model else [model]
        for name in dict.fromkeys([model, *(text for text in aliased if text is not None)]):
            found += [name] if name != model else []
            found += [priced.text for priced in self._naming(name) if name == model or priced.aliased is None]
        return list(dict.fromkeys(found))

    def candidates(
        self, model: str | None, attributes: Mapping[str, str | None], aliased: str | None = None
    ) -> list[str]:
        """The texts of the prices for an event, in the order in which they are tried: the first with a price applies.

        The prices of the model that it is an alias of at the time of the event come last; an alias of that model is not
        followed.
        """
        if aliased is not None:
            return list(dict.fromkeys([*self.candidates(model, attributes), *self.candidates(aliased, attributes)]))
        if model is None:
            return []
        own = [] if BEGINS in model else [PricedModel(model)]
        fit = {*own, *(priced for priced in self._naming(model) if priced.holds(attributes))}
        # A model that ends with ANY is asked for by its own name first.
        ranked = sorted(fit, key=lambda priced: (priced.model != model, *priced.rank[1:]))
        return [priced.text for priced in ranked]
