"""Rows in order, each with the variables that it can stand for → matches, as MATCH_RECOGNIZE finds them.

From each row in turn the preferred match is taken: what stands first in the pattern is tried first. A condition never
reads the match so far, so what follows from a row and a place in the pattern is tried once for each first row. Where
that is much, what can follow is worked out once for many first rows, from the last row on: so a row costs at most a
few times the length of the pattern, and MAX_TRIED.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

from metering.patterns.syntax import Choice, Node, Repeat, Variable
from metering.patterns.syntax import Sequence as InSequence

MAX_ROWS = 1_000
"""How many rows a match has at most, as if they alone were within the time: it bounds what a hot key costs."""
MAX_TRIED = 500
"""Places that are tried from a first row before it is worked out which of them lead anywhere."""

Path = tuple["Path", int] | None


@dataclass(frozen=True)
class Match:
    """Rows [first, end); `variables` are the numbers of what each of them stands for."""

    first: int
    variables: tuple[int, ...]

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.first + len(self.variables)


@dataclass(frozen=True)
class Program:
    """A pattern as steps: (`row`, variable) takes a row, (`either`, step, step) prefers the first, (`done`,) ends."""

    steps: tuple[tuple[int, ...], ...]

    @cached_property
    def openings(self) -> tuple[int, ...]:
        """For each of the first rows of a match, as many as any match has: the variables that it can stand for, as
        bits.
        """
        found = []
        steps = self._without_a_row({0})
        while all(self.steps[step][0] != _DONE for step in steps):
            rows = [step for step in steps if self.steps[step][0] == _ROW]
            found.append(reduce(or_, [1 << self.steps[step][1] for step in rows]))
            steps = self._without_a_row({step + 1 for step in rows})
        return tuple(found)

    def _without_a_row(self, steps: set[int]) -> set[int]:
        found, waiting = set[int](), [*steps]
        while waiting:
            step = waiting.pop()
            if step not in found:
                found.add(step)
                kind, *rest = self.steps[step]
                waiting += rest if kind == _EITHER else []
        return found

    @property
    def first(self) -> int:
        """The variables of which the first row of a match stands for one, as bits."""
        return self.openings[0]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The steps, each after those to which it leads without a row: no part that is repeated is empty."""
        found: dict[int, None] = {}
        for first in range(len(self.steps)):
            waiting = [first]
            while waiting:
                step = waiting[-1]
                kind, *rest = self.steps[step]
                missing = [other for other in rest if other not in found] if kind == _EITHER else []
                if missing and step not in found:
                    waiting += missing
                else:
                    found[waiting.pop()] = None
        return tuple(found)


_ROW, _EITHER, _DONE = 0, 1, 2
_NEVER = sys.maxsize


def program_of(pattern: Node, names: Sequence[str]) -> Program:
    """The steps of a pattern; `names` numbers its variables. After a `row` comes the next step."""
    steps: list[tuple[int, ...]] = []
    _add(steps, pattern, names)
    return Program((*steps, (_DONE,)))


def _add(steps: list[tuple[int, ...]], node: Node, names: Sequence[str]) -> None:
    match node:
        case Variable(name):
            steps.append((_ROW, names.index(name)))
        case InSequence(parts):
            for part in parts:
                _add(steps, part, names)
        case Choice(parts):
            exits = []
            for part in parts[:-1]:
                fork = _reserved(steps)
                _add(steps, part, names)
                exits.append(_reserved(steps))
                steps[fork] = (_EITHER, fork + 1, len(steps))
            _add(steps, parts[-1], names)
            for place in exits:
                steps[place] = (_EITHER, len(steps))
        case Repeat():
            _add_repeated(steps, node, names)


def _add_repeated(steps: list[tuple[int, ...]], node: Repeat, names: Sequence[str]) -> None:
    for _ in range(node.least):
        _add(steps, node.part, names)
    forks = []
    for _ in range(1 if node.most is None else node.most - node.least):
        forks.append(_reserved(steps))
        _add(steps, node.part, names)
    if node.most is None:
        steps.append((_EITHER, forks[0]))
    for fork in forks:
        enter, leave = fork + 1, len(steps)
        steps[fork] = (_EITHER, leave, enter) if node.is_reluctant else (_EITHER, enter, leave)


def _reserved(steps: list[tuple[int, ...]]) -> int:
    steps.append(())
    return len(steps) - 1


def matches(
    program: Program,
    variables: Sequence[int],
    times: Sequence[int],
    within: int,
    starts: Sequence[int],
    *,
    skips_to_next_row: bool,
    max_rows: int = MAX_ROWS,
    max_tried: int = MAX_TRIED,
) -> Iterator[Match]:
    """The matches that begin at one of the rows `starts`, which ascend, in order, of at most `max_rows` rows each.

    `variables`: what each row can stand for, as bits. `times`: when it occurred, never earlier than the one before; the
    last row of a match is at most `within` after its first, in the same unit. Where more than `max_tried` places are
    tried from a row on, it is worked out for many rows at once what leads to an end.
    """
    free = 0
    ahead: _Ahead | None = None
    for at in starts:
        if at < free or not variables[at] & program.first:
            continue
        end = _end(times, within, at, max_rows)
        known = ahead if ahead is not None and at < ahead.before else None
        try:
            found = _preferred(program, variables, at, end, known, max_tried)
        except _TriesMuch:
            before = min(at + max_rows, starts[-1] + 1)
            ahead = _Ahead(program, variables, range(at, _end(times, within, before - 1, max_rows)), before)
            found = _preferred(program, variables, at, end, ahead, max_tried)
        if found is not None:
            yield found
            free = at + 1 if skips_to_next_row else found.end


def _end(times: Sequence[int], within: int, first: int, max_rows: int) -> int:
    """The row after the last one that a match from `first` on can have."""
    return min(bisect_right(times, times[first] + within), first + max_rows)


class _TriesMuch(Exception):
    """From a first row more places were tried than `matches` allows."""


class _Ahead:
    """By row and step where the shortest rest of a match ends, for matches that begin at rows below `before`."""

    def __init__(self, program: Program, variables: Sequence[int], rows: range, before: int) -> None:
        self.before = before
        self._first = rows.start
        order = [(step, *program.steps[step]) for step in program.order]
        after = [_NEVER] * len(order)
        found = []
        for row in range(rows.stop, rows.start - 1, -1):
            taken, ends = variables[row] if row < rows.stop else 0, [_NEVER] * len(order)
            for step, kind, *rest in order:
                if kind == _DONE:
                    ends[step] = row
                elif kind == _EITHER:
                    ends[step] = min([ends[other] for other in rest])
                elif taken >> rest[0] & 1:
                    ends[step] = after[step + 1]
            found.append(ends)
            after = ends
        self._ends = found[::-1]

    def leads(self, step: int, row: int, end: int) -> bool:
        """Whether a match with rows before `end` alone goes on from this row and step."""
        return self._ends[row - self._first][step] <= end


def _preferred(  # noqa: PLR0917
    program: Program, variables: Sequence[int], first: int, end: int, ahead: _Ahead | None, max_tried: int
) -> Match | None:
    """The preferred match from a row on, with rows before `end` alone. Raises _TriesMuch without `ahead`."""
    steps, seen = program.steps, set[tuple[int, int]]()
    waiting: list[tuple[int, int, Path]] = [(0, first, None)]
    while waiting:
        step, row, path = waiting.pop()
        if (step, row) in seen or (ahead is not None and not ahead.leads(step, row, end)):
            continue
        seen.add((step, row))
        if ahead is None and len(seen) > max_tried:
            raise _TriesMuch
        kind, *rest = steps[step]
        if kind == _DONE:
            return Match(first, _taken(path))
        if kind == _EITHER:
            waiting += [(other, row, path) for other in reversed(rest)]
        elif row < end and variables[row] >> rest[0] & 1:
            waiting.append((step + 1, row + 1, (path, rest[0])))
    return None


def _taken(path: Path) -> tuple[int, ...]:
    found: list[int] = []
    while path is not None:
        path, variable = path
        found.append(variable)
    return tuple(reversed(found))
