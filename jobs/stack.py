"""The applications together: which jobs there are, and the one file that configures them all."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from jobs.analytics.config import AnalyticsConfig
from jobs.billing.config import BillingConfig
from jobs.config_files import content_of, modelled
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.runtime.config import JobConfig
from jobs.sessionization.config import SessionizationConfig
from jobs.settings.patterns import refuse_unknown_pattern_columns
from jobs.settings.view_columns import refuse_unknown_columns
from metering.contracts.files import documents_in
from metering.contracts.schema import contracts_of
from metering.contracts.shipped import shipped
from metering.vocabulary import Job


class Jobs(BaseModel):
    """Each job's configuration; what is left out has its default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ingestion: IngestionConfig = Field(default_factory=IngestionConfig)
    sessionization: SessionizationConfig = Field(default_factory=SessionizationConfig)
    joins: JoinsConfig = Field(default_factory=JoinsConfig)
    billing: BillingConfig = Field(default_factory=BillingConfig)
    analytics: AnalyticsConfig = Field(default_factory=AnalyticsConfig)

    @model_validator(mode="after")
    def _grace_covers_timeout(self) -> Jobs:
        # An abandoned request is received its timeout after its event: a shorter grace would drop every one.
        timeout, longest = max(self.joins.timeouts_seconds.items(), key=itemgetter(1))
        graces = {"billing.grace_seconds": self.billing.grace_seconds}
        for name, meter in self.billing.meters.items():
            if meter.grace_seconds is not None:
                graces[f"meters.{name}.grace_seconds"] = meter.grace_seconds
        for name, seconds in graces.items():
            if seconds >= longest:
                continue
            if name == "billing.grace_seconds" and "grace_seconds" not in self.billing.model_fields_set:
                raise ValueError(
                    f"joins.{timeout} is {longest}, but must be at most {name}, which is {seconds} where it is not "
                    "given: raise that, or lower this"
                )
            raise ValueError(
                f"{name} is {seconds}, but must be at least the longest of joins.completion_timeout_seconds and "
                f"joins.completion_timeouts: joins.{timeout} is {longest}"
            )
        return self

    @model_validator(mode="after")
    def _all_count_the_same(self) -> Jobs:
        for given in ("meters", "dimensions", "price_attributes"):
            if len({repr(getattr(getattr(self, name), given)) for name in type(self).model_fields}) > 1:
                raise ValueError(f"{given} are the same for all jobs: give them once, as `{given}` beside `jobs`")
        return self

    @model_validator(mode="after")
    def _views_read_columns(self) -> Jobs:
        analytics = self.analytics
        if analytics.measures_anything:
            contracts = contracts_of(self.ingestion.contracts, shipped())
            refuse_unknown_columns(analytics.declared_views, contracts)
            refuse_unknown_pattern_columns(analytics.declared_patterns, contracts)
        return self

    @model_validator(mode="after")
    def _clocks_agree_within_the_timeout(self) -> Jobs:
        # A stamp that is believed moves F: further ahead than this, it would end requests that are under way.
        timeout, shortest = min(self.joins.timeouts_seconds.items(), key=itemgetter(1))
        ahead = self.ingestion.max_clock_ahead_seconds
        if ahead <= shortest // 2:
            return self
        if "max_clock_ahead_seconds" not in self.ingestion.model_fields_set:
            raise ValueError(
                f"joins.{timeout} is {shortest}, but must be at least {2 * ahead}: twice "
                f"ingestion.max_clock_ahead_seconds, which is {ahead} where it is not given. Raise this, or lower that"
            )
        raise ValueError(
            f"ingestion.max_clock_ahead_seconds is {ahead}, but must be at most half of the shortest of "
            f"joins.completion_timeout_seconds and joins.completion_timeouts: joins.{timeout} is {shortest}"
        )


BESIDE_JOBS: Mapping[str, tuple[str, ...]] = {
    "contracts": ("ingestion",),
    "meters": tuple(Jobs.model_fields),
    "dimensions": tuple(Jobs.model_fields),
    "price_attributes": tuple(Jobs.model_fields),
    "views": ("analytics",),
    "windows": ("analytics",),
    "watches": ("analytics",),
    "patterns": ("analytics",),
}
"""The settings beside `jobs` in the file, and the jobs that they are for."""


class StackConfig(BaseModel):
    """The file of `weir up --config`: `jobs: {<name>: {...}}`, as in Helm's values. `load_stack_config` reads more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    jobs: Jobs = Field(default_factory=Jobs)

    def items(self) -> list[tuple[str, JobConfig]]:
        """(name, configuration) of each job that runs, in the order in which they are started."""
        is_on = {Job.ANALYTICS: self.jobs.analytics.measures_anything}
        return [(name, getattr(self.jobs, name)) for name in Jobs.model_fields if is_on.get(Job(name), True)]


def load_stack_config(path: Path | None) -> StackConfig:
    """The configuration in a YAML or JSON file, or the defaults. Raises ValueError: field, value, what is allowed.

    `contracts` lists JSON Schema files, relative to that file; `jobs.ingestion.contracts` has their content.
    `meters` and `dimensions` are the same for all jobs.
    """
    return StackConfig() if path is None else modelled(StackConfig, _spread(content_of(path), path), path)


def _spread(content: Any, path: Path) -> Any:
    """The content, with the settings beside `jobs` copied into each job that they are for."""
    if not isinstance(content, Mapping):
        return content
    given = {name: content[name] for name in BESIDE_JOBS if name in content}
    jobs = content.get("jobs") or {}
    if not given:
        return content
    if not isinstance(jobs, Mapping):
        # Refused by the model, which says what is allowed.
        return {"jobs": jobs}
    if "contracts" in given:
        given["contracts"] = _documents(given["contracts"], path)
    rest = {name: value for name, value in content.items() if name not in given}
    return {**rest, "jobs": {**jobs, **{job: _given(jobs, job, given, path) for job in Jobs.model_fields}}}


def _given(jobs: Mapping[str, Any], job: str, given: Mapping[str, Any], path: Path) -> Any:
    """One job's configuration with what is given for it beside `jobs`. Raises ValueError where both say it."""
    config = jobs.get(job) or {}
    if not isinstance(config, Mapping):
        # Refused by the model, which says what is allowed.
        return config
    meant = {name: value for name, value in given.items() if job in BESIDE_JOBS[name]}
    if both := sorted(meant.keys() & config.keys()):
        raise ValueError(f"{path}: {both[0]} and jobs.{job}.{both[0]} are both given; leave one out")
    return {**config, **meant}


def _documents(files: Any, path: Path) -> Any:
    if not isinstance(files, list) or not all(isinstance(file, str) and file for file in files):
        raise ValueError(
            f"{path}: contracts: this is a list of JSON Schema files, relative to this one (it is {files!r})"
        )
    return documents_in([path.parent / file for file in files], shipped())
