"""differential: what a job's model refuses at its start, the chart's schema refuses before, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from jobs.runtime.config import JobConfig
from jobs.stack import Jobs
from tests.chart.test_generated import schema

MODELS: dict[str, type[JobConfig]] = {job: type(config) for job, config in Jobs()}
HUGE = 10**12


def edges(model: type[JobConfig]) -> Iterator[dict[str, Any]]:
    """Configurations at and beyond what a field takes: each field alone, so that only its own bounds decide."""
    for name, field in model.model_fields.items():
        bounds = [getattr(rule, side) for rule in field.metadata for side in ("ge", "gt", "le") if hasattr(rule, side)]
        for value in {*bounds, *(bound - 1 for bound in bounds), *(bound + 1 for bound in bounds), -1, HUGE}:
            yield {name: value}
        yield {name: {"unknown": 1}}
        yield {f"{name}x": 1}


def is_taken_by_model(model: type[JobConfig], config: dict[str, Any]) -> bool:
    try:
        model.model_validate(config)
    except ValidationError as refusal:
        # Rules between fields are the templates' to refuse: tests/chart/test_refused.py.
        return all(not problem["loc"] for problem in refusal.errors())
    return True


@pytest.mark.parametrize("job", MODELS)
def test_model_and_schema_take_and_refuse_the_same(job: str) -> None:
    model = MODELS[job]
    checked = [(config, is_taken_by_model(model, config)) for config in edges(model)]
    assert {taken for _, taken in checked} == {True, False}
    validator = jsonschema.Draft202012Validator(schema())
    different = [c for c, taken in checked if taken != validator.is_valid({"jobs": {job: {"config": c}}})]
    assert different == []
