"""Groups of ingestion's settings: clocks, backfill, reversals, and the conventions of sources."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field, field_validator

from jobs.ingestion.conventions import Convention
from jobs.settings.names import Name
from metering.contracts.includes import includes_of
from metering.limits import MAX_NAME_BYTES

DAY_SECONDS = 86_400


class Clocks(BaseModel):
    """Whose clock is corrected. Every source is trusted unless it is listed as a device."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: tuple[Name, ...] = Field(
        default=(),
        max_length=100,
        description="Patterns of the `source` of devices: `*` is any text, `?` one character, all else is itself. Each "
        f"has 1 to {MAX_NAME_BYTES} bytes.",
    )
    tolerance_seconds: int = Field(
        default=2,
        ge=0,
        le=3_600,
        description="A device's clock that is off by no more than this is not corrected; in seconds, at most an hour.",
    )

    @property
    def tolerance(self) -> timedelta:
        """The tolerance as a duration."""
        return timedelta(seconds=self.tolerance_seconds)


class Backfill(BaseModel):
    """Whose marks of a first reception are trusted, and how far back."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sources: tuple[Name, ...] = Field(
        default=(),
        max_length=100,
        description="Patterns of the `source` of events of the past, as those of `clocks.device`: their header "
        "`weir-first-received` says when they were received first, and lateness and the accept window are measured "
        "from that. For any other source it is ignored.",
    )
    accept_past_seconds: int = Field(
        default=35 * DAY_SECONDS,
        ge=60,
        le=36_600 * DAY_SECONDS,
        description="How long ago such an event may have been received first; one before that is rejected as "
        "invalid_reception. In seconds, at most 100 years.",
    )


class Reversal(BaseModel):
    """Whose reversals count."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sources: tuple[Name, ...] | None = Field(
        default=None,
        max_length=100,
        description="Patterns of the `source` of reversals (`ai.inference.reversal.v1`), as those of `clocks.device`. "
        "Of any other source such an event is a dead letter. Left out: no source may take anything back, and in an "
        "installation that an earlier release has begun the type stays unknown.",
    )


class SourceConvention(BaseModel):
    """A convention for some sources, which overrides their contract."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Name = Field(description="A pattern of `source`, as those of `clocks.device`; the first match applies.")
    type: Name | None = Field(default=None, description="The type of its events; left out: all types.")
    includes: dict[str, tuple[str, ...]] = Field(
        description="Which quantities are part of others, as x-weir-includes of a contract; `{}`: none is."
    )

    @field_validator("includes")
    @classmethod
    def _is_sound(cls, includes: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        includes_of(includes)
        return includes

    @property
    def convention(self) -> Convention:
        """As the validator uses it."""
        return Convention(self.source, self.type, includes_of(self.includes))
