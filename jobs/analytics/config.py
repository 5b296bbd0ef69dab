"""The configuration of analytics."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, PrivateAttr, model_validator

from jobs.analytics.watches.running import RunningWatches
from jobs.runtime.config import JobConfig
from jobs.settings.views import MAX_SERIES, MAX_VIEWS, Views, WindowsConfig, views_of
from metering.views import View


class AnalyticsConfig(JobConfig):
    """`jobs.analytics.config`."""

    views: Views = Field(
        default_factory=dict,
        description=f"What is measured of outcomes, at most {MAX_VIEWS} views by name. Without any, and without "
        "`watches`, analytics does not run. Given as `views` beside `jobs`.",
    )
    windows: WindowsConfig = Field(
        default_factory=WindowsConfig,
        description="The windows that `weir view` shows if none is named. Given as `windows` beside `jobs`.",
    )
    watches: bool = Field(
        default=False,
        description="Whether every outcome runs past the stored queries of `weir watch`. Without them, and without a "
        "view, analytics does not run. Given as `watches` beside `jobs`.",
    )
    keep_days: int = Field(
        default=35,
        ge=1,
        le=400,
        description="How long panes and hits of watches are kept, in days of event time before the frontier.",
    )

    min_batch_interval_seconds: float = Field(
        default=4,
        ge=0,
        le=60,
        description="While events come, how long after a micro-batch of few rows the next one follows at least: a pane "
        "is of a minute, and each batch is a job of Spark.",
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

    @property
    def declared_views(self) -> tuple[View, ...]:
        """The views, by name."""
        return views_of(self.views)

    @property
    def keeps(self) -> timedelta:
        """`keep_days` as a duration."""
        return timedelta(days=self.keep_days)
