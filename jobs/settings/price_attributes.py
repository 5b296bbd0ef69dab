"""The setting `price_attributes`: what conditions of prices can name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from metering.price_attributes import PriceAttribute

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
        return PriceAttribute.banded(name, [self.of] if isinstance(self.of, str) else self.of, self.bands)


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
