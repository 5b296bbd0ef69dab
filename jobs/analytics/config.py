"""The configuration of analytics."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, PrivateAttr, model_validator

from jobs.analytics.watches.running import RunningWatches
from jobs.runtime.config import JobConfig
from jobs.settings.patterns import MAX_PATTERNS, Patterns, patterns_of
from jobs.settings.views import MAX_SERIES, MAX_VIEWS, Views, WindowsConfig, views_of
from metering.patterns.burst import AnyPattern
from metering.views import View

BUSY_ROWS = 1_000
"""Of a micro-batch after which the next one may wait for more: they are most keys of a minute."""
LSNS = ("request_lsn", "completion_lsn")
"""What names an outcome, where patterns look at it."""


class AnalyticsConfig(JobConfig):
    """`jobs.analytics.config`."""

    views: Views = Field(
        default_factory=dict,
        description=f"What is measured of outcomes, at most {MAX_VIEWS} views by name. Without any, without `patterns` "
        "and without `watches`, analytics does not run. Given as `views` beside `jobs`.",
    )
    windows: WindowsConfig = Field(
        default_factory=WindowsConfig,
        description="The windows that `weir view` shows if none is named. Given as `windows` beside `jobs`.",
    )
    watches: bool = Field(
        default=False,
        description="Whether every outcome runs past the stored queries of `weir watch`. Given as `watches` beside "
        "`jobs`.",
    )
    patterns: Patterns = Field(
        default_factory=dict,
        description=f"What is looked for in the outcomes of a key, at most {MAX_PATTERNS} patterns by name. Given as "
        "`patterns` beside `jobs`.",
    )
    keep_days: int = Field(
        default=35,
        ge=1,
        le=400,
        description="How long panes, matches and hits of watches are kept, in days of event time before the frontier.",
    )
    revise_days: int = Field(
        default=2,
        ge=1,
        le=400,
        description="How long after its event time a late outcome still revises matches of patterns; so long the "
        "outcomes that patterns look at are kept in Postgres.",
    )

    min_batch_interval_seconds: float = Field(
        default=4,
        ge=0,
        le=60,
        description="While events come, how long after a micro-batch of few rows the next one follows at least: a pane "
        "is of a minute.",
    )
    busy_batch_interval_seconds: float = Field(
        default=15,
        ge=0,
        le=60,
        description=f"The same after a micro-batch of {BUSY_ROWS:,} outcomes or more, if that is longer: each writes "
        "nearly all panes of the last minutes, so fewer and larger ones cost less. The next one follows earlier if "
        "half of what the driver reads at once waits.",
    )

    _running: RunningWatches = PrivateAttr(default_factory=RunningWatches)

    @property
    def running(self) -> RunningWatches:
        """The watches past which a batch runs: none before the first batch, or where `watches` is off."""
        return self._running

    def with_running(self, running: RunningWatches) -> AnalyticsConfig:
        """The same with these."""
        found = self.model_copy()
        found._running = running
        return found

    @model_validator(mode="after")
    def _exposes_few_series(self) -> AnalyticsConfig:
        if (series := sum(view.series for view in self.views.values())) > MAX_SERIES:
            raise ValueError(
                f"gauges of views would be up to {series:,} series, but at most {MAX_SERIES:,} are allowed: lower "
                "their `top`, or leave `gauges` out of a view"
            )
        return self

    @model_validator(mode="after")
    def _keeps_what_it_revises(self) -> AnalyticsConfig:
        if self.revise_days > self.keep_days:
            raise ValueError(
                f"revise_days is {self.revise_days}, but must be at most keep_days, which is {self.keep_days}: a match "
                "that is gone cannot be revised"
            )
        return self

    def batch_interval_seconds(self, rows: int) -> float:
        """How long after the begin of a micro-batch of so many rows the next one begins at least."""
        least = self.min_batch_interval_seconds
        return max(least, self.busy_batch_interval_seconds) if rows >= BUSY_ROWS else least

    @property
    def measures_anything(self) -> bool:
        """Whether anything is declared; else analytics does not run."""
        return bool(self.views or self.patterns or self.watches)

    @property
    def declared_patterns(self) -> tuple[AnyPattern, ...]:
        """The patterns, by name."""
        return patterns_of(self.patterns)

    @property
    def columns(self) -> list[str]:
        """The columns of outcomes that views and patterns read."""
        of_views = {column for view in self.declared_views for column in view.columns}
        of_patterns = {column for pattern in self.declared_patterns for column in pattern.columns}
        return sorted(of_views | of_patterns | ({*LSNS} if self.patterns else set()))

    @property
    def declared_views(self) -> tuple[View, ...]:
        """The views, by name."""
        return views_of(self.views)

    @property
    def keeps(self) -> timedelta:
        """`keep_days` as a duration."""
        return timedelta(days=self.keep_days)
