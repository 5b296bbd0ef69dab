"""A declared pattern: whose outcomes it looks at, what it looks for, and what a match is shown with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any

from metering.patterns.expressions import Condition, Type, condition_of, uses
from metering.patterns.matcher import Program, program_of
from metering.patterns.measures import OF_NUMBERS, PatternMeasure
from metering.patterns.syntax import parsed, variables


class AfterMatch(StrEnum):
    """Where the next match may begin."""

    PAST_LAST_ROW = "skip past last row"
    NEXT_ROW = "skip to next row"


@dataclass(frozen=True)
class Pattern:
    """One pattern of `patterns`; conditions by variable, measures in the order in which they are shown."""

    name: str
    partition_by: tuple[str, ...]
    pattern: str
    define: tuple[tuple[str, str], ...]
    within: timedelta
    measures: tuple[PatternMeasure, ...] = ()
    after_match: AfterMatch = AfterMatch.PAST_LAST_ROW
    grace: timedelta = timedelta(minutes=1)

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Its variables, each once, in the order of the pattern: their place is their number."""
        return tuple(dict.fromkeys(variables(parsed(self.pattern))))

    @cached_property
    def program(self) -> Program:
        """What the matcher runs."""
        return program_of(parsed(self.pattern), self.variables)

    @cached_property
    def conditions(self) -> Mapping[str, Condition]:
        """What rows must be to stand for a variable; one that is left out takes any row."""
        return {name: condition_of(text) for name, text in self.define}

    @cached_property
    def uses(self) -> tuple[tuple[str, str, Type | None], ...]:
        """(where, column, the type that it is read as): each place where it reads a column, keys aside."""
        of_conditions = [
            (f"define.{name}", column, kind) for name, of in self.conditions.items() for column, kind in uses(of)
        ]
        of_measures = [
            (f"measures.{measure.name}", measure.column, Type.NUMBER if measure.function in OF_NUMBERS else None)
            for measure in self.measures
            if measure.column is not None
        ]
        return (*of_conditions, *of_measures)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of outcomes that it reads, by name."""
        return tuple(sorted({*self.partition_by, *(column for _, column, _ in self.uses)}))

    @property
    def numbers(self) -> frozenset[str]:
        """Those that it reads as numbers."""
        return frozenset(column for _, column, kind in self.uses if kind is Type.NUMBER)

    @property
    def definition(self) -> dict[str, Any]:
        """All of it but the name, as JSON values."""
        return {
            "partition_by": list(self.partition_by),
            "pattern": self.pattern,
            "define": dict(self.define),
            "within_seconds": int(self.within.total_seconds()),
            "measures": {measure.name: measure.text for measure in self.measures},
            "after_match": self.after_match.value,
            "grace_seconds": int(self.grace.total_seconds()),
        }

    @property
    def version(self) -> str:
        """A hash of the definition: matches of two are never one."""
        return hashlib.sha256(json.dumps(self.definition, sort_keys=True).encode()).hexdigest()[:16]

    def match_id(self, first_lsn: int, last_lsn: int) -> str:
        """What names the match from one outcome to another, by the journal's lsn of each."""
        text = json.dumps([self.name, self.version, first_lsn, last_lsn])
        return f"match_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
