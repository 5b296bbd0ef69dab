"""The setting `patterns`: what analytics looks for in the outcomes of a key, in the order of their event time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from jobs.settings.bursts import BurstConfig, Duration
from jobs.settings.conditions import PlainName
from jobs.settings.view_columns import columns_by_kind
from metering.contracts.model import Contract
from metering.once_per import seconds_of
from metering.patterns.burst import AnyPattern, Burst
from metering.patterns.expressions import Type, condition_of
from metering.patterns.measures import PatternMeasure, measure_of
from metering.patterns.pattern import AfterMatch, Pattern
from metering.patterns.syntax import VARIABLE, parsed, variables

MAX_PATTERNS = 16
MAX_KEYS = 6
MAX_MEASURES = 16


class PatternConfig(BaseModel):
    """One pattern of `patterns`: with `pattern` and `within` what outcomes follow each other, or with `burst` how many
    there are.
    """

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
    pattern: str | None = Field(
        default=None,
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
    within: Duration | None = Field(
        default=None,
        description="How long after its first outcome the last one of a match occurs at most: PT1S to P1D. An outcome "
        "that is longer before another than this is not the one before it.",
    )
    measures: dict[PlainName, str] = Field(
        default_factory=dict,
        max_length=MAX_MEASURES,
        description="What a match is shown with, by name: count(*), count(A), count(distinct COLUMN), or count, "
        "first, last, sum, min, max of a COLUMN or A.COLUMN.",
    )
    after_match: AfterMatch = Field(
        default=AfterMatch.PAST_LAST_ROW,
        description="Where the next match may begin: after the last outcome of this one, or after its first.",
    )
    grace: Duration = Field(
        default="PT1M",
        description="A match is final when the frontier is so long after the end of `within`: as long as outcomes "
        "usually take to come, else they revise it. PT1S to P1D. A burst is final so long after its window.",
    )
    burst: BurstConfig | None = Field(
        default=None,
        description="In place of `pattern`, `define`, `within`, `measures` and `after_match`: many more outcomes in a "
        "window than before it.",
    )

    @field_validator("pattern")
    @classmethod
    def _is_pattern(cls, text: str | None) -> str | None:
        if text is not None:
            parsed(text)
        return text

    @field_validator("within", "grace")
    @classmethod
    def _is_duration(cls, text: str | None) -> str | None:
        if text is not None:
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
    def _is_either(self) -> PatternConfig:
        if self.burst is None:
            if missing := [name for name in ("pattern", "within") if getattr(self, name) is None]:
                raise ValueError(f"{missing[0]} is missing: a pattern has `pattern` and `within`, or `burst`")
        elif beside := [name for name in _OF_SEQUENCES if getattr(self, name) != _default(name)]:
            raise ValueError(
                f"{beside[0]} cannot be given with `burst`, which has `times`, `at_least` and `where` instead"
            )
        return self

    @model_validator(mode="after")
    def _names_its_variables(self) -> PatternConfig:
        if self.pattern is None:
            return self
        of_pattern = dict.fromkeys(variables(parsed(self.pattern)))
        named = [*self.define, *(measure.variable for measure in self._measures() if measure.variable)]
        if unknown := [name for name in named if name not in of_pattern]:
            raise ValueError(f"{unknown[0]} is no variable of the pattern, which has {', '.join(of_pattern)}")
        return self

    def _measures(self) -> tuple[PatternMeasure, ...]:
        return tuple(measure_of(name, text) for name, text in self.measures.items())

    def declared(self, name: str) -> AnyPattern:
        """The same as analytics uses it."""
        grace = timedelta(seconds=seconds_of(self.grace))
        if self.burst is not None:
            window, over = (timedelta(seconds=seconds_of(text)) for text in (self.burst.window, self.burst.over))
            of = self.burst
            return Burst(name, self.partition_by, of.where, window, over, of.times, of.at_least, grace)
        assert self.pattern is not None, "_is_either"
        assert self.within is not None, "_is_either"
        return Pattern(
            name,
            self.partition_by,
            self.pattern,
            tuple(sorted(self.define.items())),
            timedelta(seconds=seconds_of(self.within)),
            self._measures(),
            self.after_match,
            grace,
        )


_OF_SEQUENCES = ("pattern", "define", "within", "measures", "after_match")


def _default(name: str) -> Any:
    return PatternConfig.model_fields[name].get_default(call_default_factory=True)


Patterns = Annotated[dict[PlainName, PatternConfig], Field(max_length=MAX_PATTERNS)]


def patterns_of(patterns: Mapping[str, PatternConfig]) -> tuple[AnyPattern, ...]:
    """All of them, by name."""
    return tuple(given.declared(name) for name, given in sorted(patterns.items()))


def refuse_unknown_pattern_columns(patterns: Iterable[AnyPattern], contracts: Mapping[str, Contract]) -> None:
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
