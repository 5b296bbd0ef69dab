"""A setting that is refused: one form everywhere, `field is value: must …`, and none of pydantic's own words."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from jobs.retention.days import Retention
from jobs.runtime.environment import variable_sentence
from jobs.runtime.kafka.access import KafkaAccess
from jobs.settings.problems import sentence
from jobs.stack import StackConfig

WRONG: tuple[Any, ...] = (-(10**12), 10**30, 0.5, float("nan"), "", "x" * 600, None, True, [], [None], {}, {"x": 1})
PYDANTICS = ("Input", "input", "should", "Value error", "permitted", "Field required", "valid ", "instance of")


class Bounded(BaseModel):
    """A field for each bound."""

    above: int = Field(gt=0)
    at_least: float = Field(ge=1)
    below: int = Field(lt=5)
    at_most: int = Field(le=5)


def refused(model: type[BaseModel], content: Any) -> list[Any]:
    try:
        model.model_validate(content)
    except ValidationError as error:
        return list(error.errors())
    return []


def settings() -> list[tuple[str, str]]:
    models = {job: field.annotation for job, field in StackConfig().jobs.__class__.model_fields.items()}
    return [(job, name) for job, model in models.items() if model is not None for name in model.model_fields]


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ({"above": 0}, "above is 0: must be above 0"),
        ({"at_least": 0.5}, "at_least is 0.5: must be at least 1.0"),
        ({"below": 5}, "below is 5: must be below 5"),
        ({"at_most": 6}, "at_most is 6: must be at most 5"),
        ({"at_most": "many"}, "at_most is 'many': must be a whole number"),
        ({"at_most": None}, "at_most is null: must be a whole number"),
        ({"at_most": 1.5}, "at_most is 1.5: must be a whole number"),
        ({}, "at_most is missing"),
    ],
)
def test_a_refused_setting_says_what_it_is_and_what_it_must_be(content: Any, wanted: str) -> None:
    problems = refused(Bounded, content)
    assert wanted in [sentence(problem) for problem in problems]


@pytest.mark.parametrize(("job", "name"), settings())
def test_no_setting_of_any_job_is_refused_in_the_words_of_pydantic(job: str, name: str) -> None:
    """The value that somebody gave may have any words."""
    problems = [problem for wrong in WRONG for problem in refused(StackConfig, {"jobs": {job: {name: wrong}}})]
    assert problems, "no wrong value was refused"
    sentences = [sentence({**problem, "input": {}}) for problem in problems]
    leaked = [text for text, word in itertools.product(sentences, PYDANTICS) if word in text]
    assert leaked == []
    assert all(text.startswith("jobs") for text in sentences)


def test_a_retention_is_refused_in_the_same_form() -> None:
    (problem,) = refused(Retention, {"journal_days": 1})
    assert sentence(problem, "--journal-days") == "--journal-days is 1: must be at least 36"


def test_a_refused_variable_never_shows_its_value() -> None:
    problems = refused(KafkaAccess, {"bootstrap": "b:9092", "security_protocol": "hunter2"})
    (said,) = [variable_sentence(problem, "kafka") for problem in problems]
    assert said.startswith("WEIR_KAFKA_SECURITY_PROTOCOL: must be 'PLAINTEXT'")
    assert "hunter2" not in said
