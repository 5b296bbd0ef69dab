"""A declared burst: whose outcomes are counted, and how many times the mean of the time before a window must have."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeAlias

from metering.once_per import duration_of
from metering.patterns.expressions import Condition, Type, condition_of, uses
from metering.patterns.pattern import Pattern


@dataclass(frozen=True)
class Burst:
    """One burst of `patterns`. A tumbling window `[start, start + window)` of event time, aligned to the Unix epoch, is
    a burst of a key if it has `count` outcomes and the time `[start - over, start)` has `before`, and

        count >= at_least and count * (over / window) >= times * before

    `over` is a multiple of `window`, so all of it is whole numbers. With nothing before, `at_least` alone decides.
    """

    name: str
    partition_by: tuple[str, ...]
    where: str | None
    window: timedelta
    over: timedelta
    times: int
    at_least: int
    grace: timedelta = timedelta(minutes=1)

    @cached_property
    def condition(self) -> Condition | None:
        """Which outcomes are counted; None: all."""
        return None if self.where is None else condition_of(self.where)

    @property
    def windows_before(self) -> int:
        """How many windows `over` has."""
        return self.over // self.window

    @property
    def uses(self) -> tuple[tuple[str, str, Type | None], ...]:
        """(where, column, the type that it is read as): each place where it reads a column, keys aside."""
        of = () if self.condition is None else tuple(uses(self.condition))
        return tuple(("burst.where", column, kind) for column, kind in of)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of outcomes that it reads, by name."""
        return tuple(sorted({*self.partition_by, *(column for _, column, _ in self.uses)}))

    @property
    def numbers(self) -> frozenset[str]:
        """Those that it reads as numbers."""
        return frozenset(column for _, column, kind in self.uses if kind is Type.NUMBER)

    @property
    def text(self) -> str:
        """What it looks for, in a line."""
        window, over = (duration_of(int(length.total_seconds())) for length in (self.window, self.over))
        return f"burst: {self.at_least} or more in {window}, {self.times} times the mean of {over} before"

    @property
    def definition(self) -> dict[str, Any]:
        """All of it but the name, as JSON values; `pattern` and `within_seconds` are where those of a pattern are."""
        return {
            "partition_by": list(self.partition_by),
            "pattern": self.text,
            "where": self.where,
            "within_seconds": int(self.window.total_seconds()),
            "over_seconds": int(self.over.total_seconds()),
            "times": self.times,
            "at_least": self.at_least,
            "grace_seconds": int(self.grace.total_seconds()),
        }

    @cached_property
    def version(self) -> str:
        """A hash of the definition: matches of two are never one."""
        return hashlib.sha256(json.dumps(self.definition, sort_keys=True).encode()).hexdigest()[:16]

    def match_id(self, key: Sequence[str | None], start_us: int) -> str:
        """What names the burst of a key in the window that starts so many microseconds after the epoch.

        However many outcomes the window has: a late one changes the match and makes no other.
        """
        text = json.dumps([self.name, self.version, list(key), start_us])
        return f"match_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


AnyPattern: TypeAlias = Pattern | Burst
"""What `patterns` declares."""
