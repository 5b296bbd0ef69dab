"""Whether corrections equal what their usage adds, and start from what the window was then."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import accumulate
from operator import itemgetter

from jobs.explain.arithmetic import Entry, Row, WindowKey, total
from metering.digits import EXACT, plain

Sums = tuple[Decimal, Decimal]
"""A quantity, and an amount."""
_NOTHING = (Decimal(0), Decimal(0))


def wrong_corrections(entries: Iterable[Entry], corrections: Iterable[Row]) -> list[str]:
    """Where corrections do not say what their usage adds, as sentences."""
    added = {entry.part: entry for entry in entries}
    return [problem for correction in corrections if (problem := _wrong_correction(correction, added)) is not None]


def wrong_histories(entries: Iterable[Entry], corrections: Sequence[Row]) -> list[str]:
    """Where all usage of a window makes another window than a correction states, as sentences.

    Rows without a correction are added in the order of usage, and corrections in the order in which they were made,
    each to what the window was then.
    """
    correcting = {(lsn, row["meter"]) for row in corrections for lsn in row["usage_lsns"]}
    others: defaultdict[WindowKey, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.counts and entry.part not in correcting:
            others[entry.window].append(entry)
    of_windows: defaultdict[WindowKey, list[Row]] = defaultdict(list)
    for row in corrections:
        of_windows[WindowKey(*(row[name] for name in WindowKey._fields))].append(row)
    found = []
    for key in sorted(of_windows, key=lambda key: key.order):
        problem = _out_of_line(sorted(of_windows[key], key=itemgetter("number")), others[key])
        if problem is not None:
            found.append(problem)
    return found


def _out_of_line(corrections: Iterable[Row], others: Sequence[Entry]) -> str | None:
    """The first of a window's corrections that states another window than there was; `others` are in none of them."""
    sums = list(accumulate(((entry.quantity, entry.amount or Decimal(0)) for entry in others), _plus, initial=_NOTHING))
    lsns = [entry.usage_lsn for entry in others]
    reached, corrected = 0, _NOTHING
    for row in corrections:
        old, new = _side(row, "old"), _side(row, "new")
        # With its own batch there may be more, but nothing of before it is missing.
        reached = max(reached, bisect_left(lsns, row["usage_lsn"]))
        while reached < len(sums) and _plus(sums[reached], corrected) != old:
            reached += 1
        if reached == len(sums):
            return (
                f"correction {row['usage_lsn']}, {row['meter']}: the window never was {plain(old[0])} for "
                f"{plain(old[1])}, as it says"
            )
        corrected = _plus(corrected, _minus(new, old))
    return None


def _side(row: Row, side: str) -> Sums:
    return row[f"{side}_quantity"], row[f"{side}_amount"] or Decimal(0)


def _plus(left: Sums, other: Sums) -> Sums:
    return EXACT.add(left[0], other[0]), EXACT.add(left[1], other[1])


def _minus(left: Sums, other: Sums) -> Sums:
    return EXACT.subtract(left[0], other[0]), EXACT.subtract(left[1], other[1])


def _wrong_correction(correction: Row, added: Mapping[tuple[int, str], Entry]) -> str | None:
    """What is wrong with one; `added`: entries by usage lsn and meter."""
    named_rows = ((lsn, correction["meter"]) for lsn in correction["usage_lsns"])
    made = total(added[row] for row in named_rows if row in added)
    quantity, amount = _minus(_side(correction, "new"), _side(correction, "old"))
    if (made.quantity, made.amount) == (quantity, amount):
        return None
    named = f"correction {correction['usage_lsn']}, {correction['meter']}"
    return (
        f"{named}: its usage makes {plain(made.quantity)} for {plain(made.amount)}, and it says {plain(quantity)} for "
        f"{plain(amount)}"
    )
