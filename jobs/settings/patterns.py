"""The setting `patterns`: what analytics looks for in the outcomes of a key, in the order of their event time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from jobs.settings.conditions import PlainName
from jobs.settings.view_columns import columns_by_kind
from metering.contracts.model import Contract
from metering.once_per import DURATION, seconds_of
from metering.patterns.expressions import Type, condition_of
from metering.patterns.measures import PatternMeasure, measure_of
from metering.patterns.pattern import AfterMatch, Pattern
from metering.patterns.syntax import VARIABLE, parsed, variables

MAX_PATTERNS = 16
MAX_KEYS = 6
MAX_MEASURES = 16
Duration = Annotated[str, Field(pattern=f"^{DURATION}$")]


class PatternConfig(BaseModel):
    """One pattern of `patterns`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: Literal["outcomes"] = Field(
        description="What is looked at: outcomes of requests, matched or abandoned, once each."
    )
    partition_by: tuple[PlainName, ...] = Field(
        min_length=1,
        max_length=MAX_KEYS,
        description=f"Whose outcomes are looked at together: 1 to {MAX_KEYS} text or boolean columns. With account, "
        "each reader sees the matches of its own accounts.",
    )
    order_by: Literal["event_time"] = Field(
        default="event_time", description="The order of the outcomes; those of one instant are in the journal's order."
    )
    pattern: str = Field(
        min_length=1,
        max_length=500,
        description="Variables one after another, `|`, parentheses and the quantifiers ? * + {n} {n,} {,m} {n,m}, "
        "reluctant with a further ?. What stands first is preferred, and more repetitions before fewer.",
    )
    define: dict[Annotated[str, Field(pattern=f"^{VARIABLE}$")], str] = Field(
        default_factory=dict,
        description="The condition of each variable: columns, prev(COLUMN) of the outcome before, gap (the time since "
        "it), compared with texts, numbers, true, false and durations by =, !=, <, <=, >, >=, in, is null; and, or, "
        "not. A variable that is left out takes any outcome.",
    )
    within: Duration = Field(
        description="How long after its first outcome the last one of a match occurs at most: PT1S to P1D. An outcome "
        "that is longer before another than this is not the one before it.",
    )
    measures: dict[PlainName, str] = Field(
        default_factory=dict,
        max_length=MAX_MEASURES,
        description="What a match is shown with, by name: count(*), count(A), or count, first, last, sum, min, max of "
        "a COLUMN or A.COLUMN.",
    )
    after_match: AfterMatch = Field(
        default=AfterMatch.PAST_LAST_ROW,
        description="Where the next match may begin: after the last outcome of this one, or after its first.",
    )
    grace: Duration = Field(
        default="PT1M",
        description="A match is final when the frontier is so long after the end of `within`: as long as outcomes "
        "usually take to come, else they revise it. PT1S to P1D.",
    )

    @field_validator("pattern")
    @classmethod
    def _is_pattern(cls, text: str) -> str:
        parsed(text)
        return text

    @field_validator("within", "grace")
    @classmethod
    def _is_duration(cls, text: str) -> str:
        seconds_of(text)
        return text

    @field_validator("define")
    @classmethod
    def _are_conditions(cls, given: dict[str, str]) -> dict[str, str]:
        for name, text in given.items():
            try:
                condition_of(text)
            except ValueError as problem:
                raise ValueError(f"{name}: {problem}") from None
        return given

    @field_validator("measures")
    @classmethod
    def _are_measures(cls, given: dict[str, str]) -> dict[str, str]:
        for name, text in given.items():
            measure_of(name, text)
        return given

    @model_validator(mode="after")
    def _names_its_variables(self) -> PatternConfig:
        of_pattern = dict.fromkeys(variables(parsed(self.pattern)))
        named = [*self.define, *(measure.variable for measure in self._measures() if measure.variable)]
        if unknown := [name for name in named if name not in of_pattern]:
            raise ValueError(f"{unknown[0]} is no variable of the pattern, which has {', '.join(of_pattern)}")
        return self

    def _measures(self) -> tuple[PatternMeasure, ...]:
        return tuple(measure_of(name, text) for name, text in self.measures.items())

    def declared(self, name: str) -> Pattern:
        """The same as analytics uses it."""
        return Pattern(
            name,
            self.partition_by,
            self.pattern,
            tuple(sorted(self.define.items())),
            timedelta(seconds=seconds_of(self.within)),
            self._measures(),
            self.after_match,
            timedelta(seconds=seconds_of(self.grace)),
        )


Patterns = Annotated[dict[PlainName, PatternConfig], Field(max_length=MAX_PATTERNS)]


def patterns_of(patterns: Mapping[str, PatternConfig]) -> tuple[Pattern, ...]:
    """All of them, by name."""
    return tuple(given.declared(name) for name, given in sorted(patterns.items()))


def refuse_unknown_pattern_columns(patterns: Iterable[Pattern], contracts: Mapping[str, Contract]) -> None:
    """Raises ValueError where a pattern reads a column that no contract of a request or completion fills, or compares
    it with what it never is.
    """
    listed = list(patterns)
    if not listed:
        return
    texts, booleans, numbers = columns_by_kind(contracts)
    of_type = {
        Type.TEXT: (texts, "texts"),
        Type.BOOLEAN: (booleans, "booleans"),
        Type.NUMBER: (numbers, "numbers that completions report"),
        None: (texts | booleans | numbers, "columns of outcomes"),
    }
    for pattern in listed:
        places = [("partition_by", key, texts | booleans, "texts and booleans") for key in pattern.partition_by]
        places += [(place, column, *of_type[kind]) for place, column, kind in pattern.uses]
        for place, column, offered, what in places:
            if column not in offered:
                raise ValueError(
                    f"patterns.{pattern.name}.{place} names {column}, but there it can name "
                    f"{', '.join(sorted(offered))}: the {what}"
                )
