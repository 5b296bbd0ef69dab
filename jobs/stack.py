"""The four applications together: which jobs there are, and the one file that configures them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from jobs.billing.config import BillingConfig
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.runtime.config import JobConfig
from jobs.sessionization.config import SessionizationConfig

M = TypeVar("M", bound=BaseModel)


class Jobs(BaseModel):
    """Each job's configuration; what is left out has its default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ingestion: IngestionConfig = Field(default_factory=IngestionConfig)
    sessionization: SessionizationConfig = Field(default_factory=SessionizationConfig)
    joins: JoinsConfig = Field(default_factory=JoinsConfig)
    billing: BillingConfig = Field(default_factory=BillingConfig)

    @model_validator(mode="after")
    def _grace_covers_timeout(self) -> Jobs:
        # An abandoned request is received its timeout after its event: a shorter grace would drop every one.
        if self.billing.grace_seconds < self.joins.longest_timeout_seconds:
            raise ValueError(
                f"billing.grace_seconds is {self.billing.grace_seconds}, but must be at least the longest of "
                "joins.completion_timeout_seconds and joins.completion_timeouts, which is "
                f"{self.joins.longest_timeout_seconds}"
            )
        return self

    @model_validator(mode="after")
    def _clocks_agree_within_the_timeout(self) -> Jobs:
        # A stamp that is believed moves F: further ahead than this, it would end requests that are under way.
        most = self.joins.shortest_timeout_seconds // 2
        if self.ingestion.max_clock_ahead_seconds > most:
            raise ValueError(
                f"ingestion.max_clock_ahead_seconds is {self.ingestion.max_clock_ahead_seconds}, but must be at most "
                f"half of the shortest of joins.completion_timeout_seconds and joins.completion_timeouts: {most}"
            )
        return self


class StackConfig(BaseModel):
    """The file of `weir up --config`: `jobs: {<name>: {...}}`, as in Helm's values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    jobs: Jobs = Field(default_factory=Jobs)

    def items(self) -> list[tuple[str, JobConfig]]:
        """(name, configuration) of each job, in the order in which they are started."""
        return [(name, getattr(self.jobs, name)) for name in Jobs.model_fields]


def load_stack_config(path: Path | None) -> StackConfig:
    """The configuration in a YAML or JSON file, or the defaults. Raises ValueError: field, value, what is allowed."""
    return StackConfig() if path is None else validated(StackConfig, path)


def validated(model: type[M], path: Path) -> M:
    """A model read from a file. Raises ValueError with one line per problem."""
    try:
        return model.model_validate(yaml.safe_load(path.read_text()) or {})
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    except ValidationError as error:
        raise ValueError("\n".join(f"{path}: {_sentence(problem)}" for problem in error.errors())) from error


def _sentence(problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    given = "" if isinstance(problem["input"], dict) else f" (it is {problem['input']!r})"
    return f"{field}: {problem['msg']}{given}" if field else problem["msg"]
