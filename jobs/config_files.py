"""Configuration files, in YAML or JSON, as models."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from jobs.settings.problems import sentence

M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], path: Path) -> M:
    """A model read from a file. Raises ValueError with one line per problem."""
    return modelled(model, content_of(path), path)


def content_of(path: Path) -> Any:
    """What a file says. Raises ValueError."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    with suppress(json.JSONDecodeError):
        # As the chart writes it. YAML would take its 1e-09 for a text.
        return json.loads(text) or {}
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error


def modelled(model: type[M], content: Any, path: Path) -> M:
    """The content of a file as a model. Raises ValueError with one line per problem."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ValueError("\n".join(f"{path}: {sentence(problem)}" for problem in error.errors())) from error
