"""Which events a price applies to: a model, a prefix of models, a group of both, or any with conditions on columns.

In the catalog this is one text, the price's `model`: `gpt-4o`, `gpt-4o-2024-*`, a group as a JSON list,
`["gpt-4o-*","o3"]`, or one of them with its conditions as JSON, `gpt-4o{"operation":"batch"}`. So a price with
conditions has versions, an end and an author like any other, and a group has one ladder of tiers.

An alias is written the same way: `gpt-4o-latest{"=":"gpt-4o-2024-08-06"}` is not a price; it names the model whose
prices apply.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

MAX_CONDITIONS = 4
ANY = "*"
"""At the end of a model: any suffix."""
BEGINS = '{"'
"""How conditions begin. A model that an event reports and that holds this has no price of its own."""
GROUP = '["'
"""How a group begins. Nor has a model that an event reports and that begins so."""
MAX_MODELS = 50
"""Models and prefixes of a group."""
ALIAS = "="
"""In place of a column: the model whose prices a name has that has none of its own."""
PLAN = "+"
"""In place of a column: a row that says what the plan itself costs (`metering.plan_terms`). No event meets it."""
ALIAS_METER, ALIAS_CURRENCY = "requests", "XXX"
"""An alias is of all meters and currencies. As a row of prices it has these, at 0; XXX is no currency (ISO 4217)."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/*+-]*")
"""Names that YAML needs no quotes for."""
Conditions = tuple[tuple[str, str], ...]
"""Columns of events and the value of each, by column; a boolean is `true` or `false`."""


@dataclass(frozen=True, order=True)
class PricedModel:
    """What a price is for. `model` ends with ANY where it is a prefix, and begins with GROUP where it is a group."""

    model: str
    conditions: Conditions = ()

    @classmethod
    def of(cls, model: str, conditions: Mapping[str, str]) -> PricedModel:
        """With the conditions in one order."""
        return cls(model, tuple(sorted(conditions.items())))

    @classmethod
    def parse(cls, text: str) -> PricedModel:
        """What `text` wrote. Raises ValueError for a group or conditions that are written otherwise: one price has one
        text.
        """
        begins = text.find(BEGINS)
        model = text if begins < 0 else text[:begins]
        if model.startswith(GROUP) and _group_in(model) != model:
            raise ValueError(
                f"{text!r} must be a group of models as a JSON list of 2 to {MAX_MODELS} texts in the order of their "
                'bytes, each once, without spaces: ["gpt-4o-*","o3"]'
            )
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
    def group(cls, models: Iterable[str], conditions: Mapping[str, str] | None = None) -> PricedModel:
        """A price for all of these models and prefixes together. Raises ValueError for what is no group."""
        members = sorted(models, key=str.encode)
        if not 2 <= len(members) <= MAX_MODELS or len(members) != len(set(members)):
            raise ValueError(f"must be 2 to {MAX_MODELS} models, each once")
        if wrong := [name for name in members if not name or not is_own(name) or name.endswith(BEGINS[0])]:
            raise ValueError(f"{wrong[0]!r} must be the name of one model, or a prefix with {ANY}")
        return cls.of(json.dumps(members, separators=(",", ":"), ensure_ascii=False), conditions or {})

    @classmethod
    def alias(cls, name: str, model: str) -> PricedModel:
        """That a name has the prices of a model. Raises ValueError for what is not the name of one model."""
        for text in (name, model):
            if BEGINS in text or text.endswith(ANY) or text.startswith(GROUP):
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
    def words(self) -> str:
        """As people write it: a group as in a catalog file, `[gpt-4o-*, o3] {operation: batch}`; else its text."""
        if not self.is_group:
            return self.text
        conditions = ", ".join(f"{column}: {value}" for column, value in self.conditions)
        names = ", ".join(
            name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False) for name in self.members
        )
        return f"[{names}]" + (f" {{{conditions}}}" if conditions else "")

    @property
    def is_plain(self) -> bool:
        """Whether it is for all events of one model."""
        return not self.conditions and not self.model.endswith(ANY) and not self.is_group

    @property
    def is_group(self) -> bool:
        """Whether it is for several models or prefixes."""
        return self.model.startswith(GROUP)

    @cached_property
    def members(self) -> tuple[str, ...]:
        """Each model and prefix that it is for."""
        return tuple(json.loads(self.model)) if self.is_group else (self.model,)

    def names(self, model: str) -> bool:
        """Whether the price applies to a model that an event reports, if its conditions are met."""
        return self.member(model) is not None

    def member(self, model: str) -> str | None:
        """The model itself or else the longest prefix by which it applies to a model; None: it does not."""
        found = [name for name in self.members if _names(name, model)]
        return max(found, key=lambda name: (name == model, len(name)), default=None)

    def holds(self, attributes: Mapping[str, str | None]) -> bool:
        """Whether an event meets its conditions; a missing value meets none."""
        return all(attributes.get(column) == value for column, value in self.conditions)

    def rank(self, model: str) -> tuple[bool, int, bool, int, str]:
        """Of several prices that name a model the lowest rank is tried first.

        That is the model itself, then the longest prefix; within one, what is no group, then the most conditions.
        """
        by = self.member(model) or ""
        return by != model, -len(by), self.is_group, -len(self.conditions), self.text


def _names(member: str, model: str) -> bool:
    if member == model:
        return is_own(model)
    return member.endswith(ANY) and model.startswith(member.removesuffix(ANY))


def model_words(model: str) -> str:
    """What a price is for, as people write it (`PricedModel.words`); what is no notation of prices stays as it is."""
    try:
        return PricedModel.parse(model).words
    except ValueError:
        return model


def is_own(model: str) -> bool:
    """Whether a model that an event reports can have a price of exactly its name: not in the notation of prices."""
    return BEGINS not in model and not model.startswith(GROUP)


def _group_in(text: str) -> str | None:
    """The one text of a group; None where it is none."""
    try:
        models = json.loads(text)
        is_fit = isinstance(models, list) and all(isinstance(name, str) for name in models)
        return PricedModel.group(models).model if is_fit else None
    except ValueError:
        return None


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
            for name in priced.members:
                found[name].append(priced)
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
            yield from (priced for priced in self._by_model.get(name, ()) if priced.member(model) == name)

    def of_model(self, model: str | None) -> list[str]:
        """The texts of all prices that may be for any event of a model; its own among them.

        Also its aliases, and the prices of what these name.
        """
        if model is None:
            return []
        aliased = [alias.aliased for alias in self.aliases.get(model, ())]
        found = [model] if is_own(model) else []
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
        own = [PricedModel(model)] if is_own(model) else []
        fit = {*own, *(priced for priced in self._naming(model) if priced.holds(attributes))}
        return [priced.text for priced in sorted(fit, key=lambda priced: priced.rank(model))]
