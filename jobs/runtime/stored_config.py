"""The configuration that a job was last started with, from the database: to check what it has made."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from jobs.runtime.config import JobConfig
from jobs.runtime.errors import Refused
from jobs.settings.problems import sentence

Config = TypeVar("Config", bound=JobConfig)


def parse_stored_config(job: str, kind: type[Config], document: Any) -> Config:
    """`jobs.config` of a job. Raises Refused for a configuration of another version that this one refuses."""
    try:
        return kind.model_validate(document)
    except ValidationError as refusal:
        [first, *_] = refusal.errors()
        raise Refused(
            f"{job} was started last with a configuration that this version of Weir does not know "
            f"({sentence(first)}): use the version that {job} runs with, or start {job} with this one first"
        ) from None
