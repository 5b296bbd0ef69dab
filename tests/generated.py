"""What Hypothesis generates, all at once: so that it shares a frame, and what checks it is started once."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import Phase, given, settings
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def generated(strategy: SearchStrategy[T], count: int) -> list[T]:
    """So many examples, the same in every run that has imported the same modules: Hypothesis tries their constants."""
    found: list[T] = []

    @settings(max_examples=count, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(strategy)
    def collect(value: T) -> None:
        found.append(value)

    collect()
    return found
