"""Matches of a pattern against the standard's own words, taken literally: of all words of the pattern, in the order of
preference, the first one that the rows fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metering.patterns.matcher import MAX_ROWS, MAX_TRIED, Match, matches, program_of
from metering.patterns.syntax import Choice, Node, Repeat, Variable, can_be_empty, parsed
from metering.patterns.syntax import Sequence as InSequence

NAMES = ("A", "B", "C")
Word = tuple[str, ...]


def words(node: Node, longest: int) -> Iterator[Word]:
    """All words of a pattern of at most so many rows, those that are preferred first."""
    match node:
        case Variable(name):
            yield from [(name,)] if longest else []
        case InSequence((first, *rest)):
            yield from followed(first, InSequence(tuple(rest)) if rest else None, longest)
        case Choice(parts):
            for part in parts:
                yield from words(part, longest)
        case Repeat(part, least, most, is_reluctant):
            more: Iterator[Word] = iter(())
            if most is None or most:
                fewer = Repeat(part, max(0, least - 1), None if most is None else most - 1, is_reluctant)
                more = followed(part, fewer, longest)
            none = [()] if least == 0 else []
            yield from chain(none, more) if is_reluctant else chain(more, none)


def followed(first: Node, then: Node | None, longest: int) -> Iterator[Word]:
    for word in words(first, longest):
        for other in words(then, longest - len(word)) if then is not None else [()]:
            yield word + other


def words_fitting(
    pattern: str, rows: Sequence[frozenset[str]], times: Sequence[int], within: Any, *, to_next_row: bool
) -> list[tuple[int, Word]]:
    """The first row and the word of each match; `within` in the unit of `times`, or a duration where that is µs."""
    if isinstance(within, timedelta):
        within //= timedelta(microseconds=1)
    node, found, at = parsed(pattern), [], 0
    while at < len(rows):
        longest = next((n for n in range(at, len(rows)) if times[n] - times[at] > within), len(rows)) - at
        fit = (
            word
            for word in words(node, longest)
            if all(name in row for name, row in zip(word, rows[at:], strict=False))
        )
        word = next(fit, None)
        if word is not None:
            found.append((at, word))
        at += 1 if word is None or to_next_row else len(word)
    return found


def texts() -> st.SearchStrategy[str]:
    quantifiers = st.sampled_from(["", "", "?", "*", "+", "{2}", "{1,2}", "{,2}", "{2,}", "??", "*?", "+?", "{1,3}?"])

    def larger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        several = st.lists(parts, min_size=1, max_size=3)
        return st.builds("({}){}".format, st.one_of(several.map(" ".join), several.map(" | ".join)), quantifiers)

    return st.recursive(st.builds("{}{}".format, st.sampled_from(NAMES), quantifiers), larger, max_leaves=5)


def readable(text: str) -> Node | None:
    try:
        return parsed(text)
    except ValueError:
        return None


PATTERNS = texts().filter(lambda text: readable(text) is not None)
ROWS = st.lists(st.frozensets(st.sampled_from(NAMES)), max_size=7)


def bits(rows: Sequence[frozenset[str]]) -> list[int]:
    return [sum(1 << NAMES.index(name) for name in row) for row in rows]


def found_in(
    text: str, rows: Sequence[frozenset[str]], times: Sequence[int], within: int, **how: Any
) -> list[tuple[int, Word]]:
    starts = range(len(rows))
    found = matches(program_of(parsed(text), NAMES), bits(rows), times, within, starts, skips_to_next_row=False, **how)
    return [(one.first, tuple(NAMES[variable] for variable in one.variables)) for one in found]


@given(PATTERNS, ROWS, st.lists(st.integers(0, 3), min_size=7, max_size=7), st.integers(0, 8), st.booleans())
@example("A B*? (A | B C)", [frozenset("AB"), frozenset("B"), frozenset("ABC"), frozenset("C")], [0] * 7, 9, False)
@example("(A B? | A C)+", [frozenset("A"), frozenset("C"), frozenset("A"), frozenset("BC")], [1] * 7, 2, True)
def test_oracle_each_match_is_the_first_word_in_the_order_of_preference_that_its_rows_fit(
    text: str, rows: list[frozenset[str]], gaps: list[int], within: int, to_next_row: bool
) -> None:
    times = [sum(gaps[: n + 1]) for n in range(len(rows))]
    program = program_of(parsed(text), NAMES)
    must = words_fitting(text, rows, times, within, to_next_row=to_next_row)
    for most_tried in (0, 4, MAX_TRIED):
        how: dict[str, Any] = {"skips_to_next_row": to_next_row, "max_tried": most_tried}
        found = list(matches(program, bits(rows), times, within, range(len(rows)), **how))
        assert [(one.first, tuple(NAMES[variable] for variable in one.variables)) for one in found] == must


@given(PATTERNS, st.lists(st.sampled_from(NAMES), max_size=12))
def test_differential_rows_of_one_variable_each_are_matched_as_python_matches_their_names(
    text: str, rows: list[str]
) -> None:
    found = found_in(text, [frozenset(row) for row in rows], [0] * len(rows), 0)
    spans = [(one.start(), one.end()) for one in re.finditer(text.replace(" ", ""), "".join(rows))]
    assert [(first, first + len(word)) for first, word in found] == spans


@given(PATTERNS, ROWS, ROWS)
def test_rows_after_the_time_of_a_match_and_starts_before_change_nothing(
    text: str, rows: list[frozenset[str]], later: list[frozenset[str]]
) -> None:
    times = [*range(len(rows)), *range(1_000, 1_000 + len(later))]
    program = program_of(parsed(text), NAMES)
    alone = list(matches(program, bits(rows), times, 100, range(len(rows)), skips_to_next_row=True))
    both = list(matches(program, bits(rows + later), times, 100, range(len(rows)), skips_to_next_row=True))
    assert alone == both
    for start in range(len(rows)):
        some = matches(program, bits(rows), times, 100, range(start, len(rows)), skips_to_next_row=True)
        assert list(some) == [one for one in alone if one.first >= start]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30), st.integers(1, 5), st.integers(0, 8))
def test_oracle_a_sliding_window_is_a_pattern_that_matches_at_each_row_with_so_many_within_the_time_before_it(
    rows: list[tuple[int, bool]], count: int, within: int
) -> None:
    """`A (OTHER* A){count - 1}`, to the next row: whatever other rows are between."""
    times = [sum(gap for gap, _ in rows[: n + 1]) for n in range(len(rows))]
    program = program_of(parsed(f"A (B* A){{{count - 1}}}" if count > 1 else "A"), ("A", "B"))
    counted = [1 if is_counted else 2 for _, is_counted in rows]
    found = list(matches(program, counted, times, within, range(len(rows)), skips_to_next_row=True))
    places = [n for n, (_, is_counted) in enumerate(rows) if is_counted]
    must = [
        (places[n - count + 1], last + 1)
        for n, last in enumerate(places)
        if n + 1 >= count and times[last] - times[places[n - count + 1]] <= within
    ]
    assert [(one.first, one.end) for one in found] == must


def test_a_pattern_that_could_be_tried_in_exponentially_many_ways_is_tried_in_few() -> None:
    program = program_of(parsed("(A+ A+)+ B"), ("A", "B"))
    assert list(matches(program, [1] * 400, [0] * 400, 0, range(400), skips_to_next_row=True)) == []


@given(PATTERNS, st.lists(st.frozensets(st.sampled_from(NAMES)), max_size=40), st.integers(1, 9), st.booleans())
def test_what_is_worked_out_for_many_first_rows_finds_what_trying_finds(
    text: str, rows: list[frozenset[str]], within: int, to_next_row: bool
) -> None:
    program, times = program_of(parsed(text), NAMES), [n // 2 for n in range(len(rows))]
    found = []
    for most_tried in (0, 3, 10**9):
        how: dict[str, Any] = {"skips_to_next_row": to_next_row, "max_tried": most_tried, "max_rows": 6}
        found.append(list(matches(program, bits(rows), times, within, range(len(rows)), **how)))
    assert found[0] == found[1] == found[2]


class Counting(list[int]):
    """Rows that count how often one is looked at."""

    reads = 0

    def __getitem__(self, at: Any) -> Any:
        self.reads += 1
        return super().__getitem__(at)


@pytest.mark.parametrize("text", ["A{1,150} B{1,150} C", "A+ B+ C", "(A | B){1,100} (B | A){1,100} C"])
def test_a_pattern_of_many_places_over_a_busy_key_looks_at_a_row_a_bounded_number_of_times(text: str) -> None:
    rows = Counting([3] * 400)
    program = program_of(parsed(text), NAMES)
    assert list(matches(program, rows, [0] * 400, 0, range(400), skips_to_next_row=False)) == []
    assert rows.reads <= 400 * 3 + MAX_TRIED


def test_a_match_has_at_most_so_many_rows_and_the_next_one_goes_on_behind_it() -> None:
    count = 2 * MAX_ROWS + 10
    program = program_of(parsed("A{3,}"), ("A",))
    found = list(matches(program, [1] * count, [0] * count, 0, range(count), skips_to_next_row=False))
    assert found == [Match(n * MAX_ROWS, (0,) * size) for n, size in enumerate((MAX_ROWS, MAX_ROWS, 10))]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"must have a variable or a group at character 1"),
        ("A |", r"must have a variable or a group at character 4"),
        ("A (B", r"must have the \) of the \( at character 3 at character 5"),
        ("A) B", r"must have the end: this \) closes nothing at character 2"),
        ("a B", r"must have a variable \(capital letters, digits, _\), .* at character 1"),
        ("* A", r"must have a variable or a group before the quantifier at character 1"),
        ("A{,}", r"must have a number, as in \{3\}, .* at character 2"),
        ("A{3,2}", r"has \{3,2\} at character 2; a quantifier repeats up to 1 to 1,000 times, and its first"),
        ("A{0}", r"a quantifier repeats"),
        ("A{1001}", r"a quantifier repeats"),
        ("A{100} (B C){1000}", r"is 2,100 variables with its repetitions written out, at most 2,000"),
        ("A*", r"matches no row at all"),
        ("A (B?)*", r"repeats at character 7 what can be nothing: repeat its parts instead"),
        ("^A", r"at character 1"),
        (" ".join(f"V{n}" for n in range(17)), r"has 17 variables; it can have 16"),
    ],
)
def test_what_is_no_pattern_is_refused_with_the_place_and_what_must_be_there(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parsed(text)


@given(PATTERNS)
def test_no_pattern_that_is_taken_can_be_empty(text: str) -> None:
    assert not can_be_empty(parsed(text))
