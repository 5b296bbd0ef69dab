"""The setting `burst` of one of `patterns`: how many outcomes a window must have, also beside the time before it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from metering.once_per import DURATION, seconds_of
from metering.patterns.expressions import condition_of, looks_back

MAX_WINDOW_SECONDS = 600
"""The outcomes of a window are counted together."""
Duration = Annotated[str, Field(pattern=f"^{DURATION}$")]


class BurstConfig(BaseModel):
    """How many outcomes a window must have to be a burst."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    times: int = Field(
        ge=2,
        le=1_000_000,
        description="A window is a burst if it has at least so many times the mean of the windows of `over` before it.",
    )
    at_least: int = Field(
        ge=2,
        le=1_000_000_000,
        description="And at least so many outcomes; where there was none before, this alone decides.",
    )
    window: Duration = Field(
        default="PT1M",
        description="The length of tumbling windows: whole minutes, PT1M to PT10M, aligned to the epoch.",
    )
    over: Duration = Field(
        default="PT1H", description="The time before a window that it is compared with: a multiple of it, at most P1D."
    )
    where: str | None = Field(
        default=None,
        min_length=1,
        description="Which outcomes are counted, here and before: a condition as those of `define`, without prev and "
        "gap.",
    )

    @field_validator("where")
    @classmethod
    def _reads_one_outcome(cls, text: str | None) -> str | None:
        if text is not None and looks_back(condition_of(text)):
            raise ValueError("a burst counts outcomes each by itself: prev and gap are for `define`")
        return text

    @model_validator(mode="after")
    def _has_whole_windows(self) -> BurstConfig:
        window, over = seconds_of(self.window), seconds_of(self.over)
        if window % 60 or window > MAX_WINDOW_SECONDS:
            raise ValueError(f"window is {self.window}, but must be whole minutes from PT1M to PT10M")
        if over % window:
            raise ValueError(f"over is {self.over}, but must be a multiple of window, which is {self.window}")
        return self
