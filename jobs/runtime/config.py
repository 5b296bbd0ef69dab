"""Configuration that every job has: a frozen model, verbatim in Helm."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from jobs.settings.dimensions import MAX_DIMENSIONS, Dimensions, refuse_unfit_dimensions
from jobs.settings.meters import (
    BILLED_STATUSES,
    DEFAULT_METERS,
    DETAIL_METERS,
    MeterConfig,
    Meters,
    declarations,
    refuse_unfit,
)
from jobs.settings.price_attributes import MAX_ATTRIBUTES, PriceAttributes, attributes_of, refuse_unfit_attributes
from metering.meters import MAX_METERS, Declaration, Meter
from metering.price_attributes import PriceAttribute


class JobConfig(BaseModel):
    """What every job has. Unknown fields are refused; a wrong value names the field, the value and what is allowed."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=False)

    DECIDING: ClassVar[tuple[str, ...]] = ()
    """Fields that decide what a row becomes: they are kept with the position from which they hold."""

    @property
    def deciding(self) -> dict[str, Any]:
        """Those fields as JSON values."""
        return self.model_dump(mode="json", include=set(self.DECIDING))

    max_records_per_batch: int = Field(
        default=200_000,
        ge=1,
        le=1_000_000,
        description="Maximum records in one micro-batch.",
    )
    driver_memory_mib: int = Field(
        default=512,
        ge=512,
        le=65_536,
        description="Java heap of the driver, in MiB; Spark needs at least 450 to start.",
    )
    meters: Meters = Field(
        default_factory=lambda: dict(DEFAULT_METERS),
        description=f"What is counted and priced: 1 to {MAX_METERS} meters by name, the same for all applications. "
        "Left out: the default, and in a new installation also parts of the tokens (cache_write_tokens, "
        "reasoning_tokens, and those of audio and images). Given as `meters` beside `jobs`.",
    )

    dimensions: Dimensions = Field(
        default=(),
        description="Text columns of contracts, and columns of the account (account.plan, account.tags.KEY), that go "
        f"with an outcome into usage and the days, at most {MAX_DIMENSIONS}; the same for all applications. Given as "
        "`dimensions` beside `jobs`.",
    )

    price_attributes: PriceAttributes = Field(
        default=(),
        description="What conditions of prices can name: text and boolean columns of contracts, such as operation, "
        "columns of the account (account.parent, account.tags.KEY), and bands of reported quantities "
        "(`context: {of: input_tokens, bands: {up_to_200k: 200000, above_200k: null}}`), at most "
        f"{MAX_ATTRIBUTES}; the same for all applications. Given as `price_attributes` beside `jobs`.",
    )

    @field_validator("dimensions")
    @classmethod
    def _each_once(cls, names: Dimensions) -> Dimensions:
        refuse_unfit_dimensions(names)
        return names

    @field_validator("price_attributes")
    @classmethod
    def _each_attribute_once(cls, names: PriceAttributes) -> PriceAttributes:
        refuse_unfit_attributes(attributes_of(names))
        return names

    @field_validator("meters")
    @classmethod
    def _fit_together(cls, meters: Meters) -> Meters:
        refuse_unfit(meters)
        return meters

    @property
    def declares_meters(self) -> bool:
        """Whether the configuration declares meters."""
        return "meters" in self.model_fields_set

    def settled_meters(self, *, bills_failures: bool, has_details: bool) -> dict[str, MeterConfig]:
        """The meters; where none are declared, with those of DETAIL_METERS if it `has_details`.

        The default `requests` counts failed and abandoned requests where `bills_failures`.
        """
        if self.declares_meters:
            return self.meters
        meters = {**self.meters, **(DETAIL_METERS if has_details else {})}
        if bills_failures:
            return meters
        requests = self.meters[Meter.REQUESTS].model_copy(update={"where": {"status": list(BILLED_STATUSES)}})
        return meters | {Meter.REQUESTS.value: requests}

    @property
    def rows_at_once(self) -> int:
        """Most rows of a table in one batch."""
        return self.max_records_per_batch

    @property
    def attributes(self) -> tuple[PriceAttribute, ...]:
        """What conditions of prices can name."""
        return attributes_of(self.price_attributes)

    @property
    def declared(self) -> tuple[Declaration, ...]:
        """The meters, by name."""
        return declarations(self.meters)
