"""The setting `price_attributes`: what conditions of prices can name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_serializer,
    field_validator,
)

from jobs.settings.conditions import PlainName
from jobs.settings.dimensions import Dimension
from jobs.settings.names import as_written
from jobs.settings.outcome_columns import OF_OUTCOMES, OUTCOME_TEXTS
from metering.meters import LARGEST_QUANTITY, QUANTITY_DECIMALS
from metering.price_attributes import EACH_UNIT_ONCE, PriceAttribute

MAX_ATTRIBUTES = 8
MAX_BANDS = 20
MAX_COLUMNS = 10
"""Of an event whose quantities are added up for one attribute."""


Bound = Annotated[
    Annotated[Decimal, Field(ge=0, le=LARGEST_QUANTITY, decimal_places=QUANTITY_DECIMALS)] | None,
    BeforeValidator(as_written),
]
Columns = Annotated[list[PlainName], Field(min_length=1, max_length=MAX_COLUMNS)]


class BandsConfig(BaseModel):
    """An attribute that is a band of a reported quantity."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: PlainName | Columns = Field(
        description="The column whose quantity it is, as the report that bills has it; or a list of columns that are "
        "added up. What is not reported is in no band."
    )
    bands: dict[PlainName, Bound] = Field(
        min_length=2,
        max_length=MAX_BANDS,
        description="Up to which quantity, included, each band goes; null for the one above all others.",
    )

    each_unit_once: bool | None = Field(
        default=None,
        exclude_if=lambda given: given is None,
        description="Whether a column of the list is left out that is part of another one of it, by the convention of "
        "the event: cached tokens of OpenAI are input tokens, and Anthropic's are beside them. Left out, an attribute "
        "that decided prices before this setting existed adds up all columns, as it did, and any other counts each "
        "unit once. It holds for what is decided after it is changed.",
    )

    @field_validator("bands")
    @classmethod
    def _cover_each_quantity_once(cls, bands: dict[str, Decimal | None]) -> dict[str, Decimal | None]:
        bounds = list(bands.values())
        if bounds.count(None) != 1:
            raise ValueError("one band, and only one, is above all others: its bound is null")
        if len(set(bounds)) < len(bounds):
            raise ValueError("two bands go up to the same quantity")
        return bands

    @field_serializer("bands")
    def _as_texts(self, bands: dict[str, Decimal | None]) -> dict[str, str | None]:
        return {name: None if bound is None else f"{bound:f}" for name, bound in bands.items()}

    def attribute(self, name: str) -> PriceAttribute:
        """As the applications use it."""
        of = [self.of] if isinstance(self.of, str) else self.of
        return PriceAttribute.banded(name, of, self.bands, each_unit_once=bool(self.each_unit_once))

    def settled(self, stored: PriceAttribute | None) -> BandsConfig:
        """With `each_unit_once` filled. `stored`: how the attribute decided prices so far; None: it is new."""
        if self.each_unit_once is not None or isinstance(self.of, str):
            return self
        adds_up = stored is not None and len(stored.of) > 1 and not stored.each_unit_once
        return self.model_copy(update={EACH_UNIT_ONCE: not adds_up})


def _kind(given: Any) -> str:
    return "bands" if isinstance(given, Mapping) else "column"


Banded = Annotated[dict[PlainName, BandsConfig], Field(min_length=1, max_length=1)]
AttributeConfig = Annotated[Annotated[Dimension, Tag("column")] | Annotated[Banded, Tag("bands")], Discriminator(_kind)]
PriceAttributes = Annotated[tuple[AttributeConfig, ...], Field(max_length=MAX_ATTRIBUTES)]


def attributes_of(listed: Sequence[str | Mapping[str, BandsConfig]]) -> tuple[PriceAttribute, ...]:
    """Those that a configuration lists."""
    found = []
    for stored in listed:
        if isinstance(stored, str):
            found.append(PriceAttribute(stored))
        else:
            found += [bands.attribute(name) for name, bands in stored.items()]
    return tuple(found)


def settled_attributes(listed: PriceAttributes, stored: Iterable[PriceAttribute]) -> PriceAttributes:
    """A configuration's attributes, settled by those that decided prices so far."""
    known = {attribute.name: attribute for attribute in stored}
    return tuple(
        given if isinstance(given, str) else {name: bands.settled(known.get(name)) for name, bands in given.items()}
        for given in listed
    )


def refuse_unfit_attributes(attributes: Sequence[PriceAttribute]) -> None:
    """Raises ValueError where a name occurs twice, or is what an outcome has of its own."""
    names = [attribute.name for attribute in attributes]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} occurs twice")
        if name == "model":
            raise ValueError("model is no attribute: a price names its model, or how that begins (gpt-4o-2024-*)")
        if name in OF_OUTCOMES - set(OUTCOME_TEXTS):
            raise ValueError(f"an outcome has a {name} of its own; give the contract another x-weir-column for it")
