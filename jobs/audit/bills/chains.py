"""I8: each correction states the change of its usage rows, and starts where the previous correction ended.

A straggler that waited becomes a correction when it is decided, so corrections are ordered by `number`, not by usage.
Quantities and amounts are Decimal with all their digits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from typing import Any

import polars as pl

from jobs.audit.bills.expected import OF_WINDOW, WINDOWS
from jobs.audit.bills.holds import INSTANT
from jobs.audit.compare.columns import Wrong, key_text, value_text
from metering.vocabulary import BILLED, UsageCause

CORRECTIONS = pl.Schema(
    {
        "usage_lsn": pl.Int64(),
        "meter": pl.String(),
        "number": pl.Int64(),
        "usage_lsns": pl.String(),
        "window_start": INSTANT,
        **{name: pl.String() for name in ("account", "model", "currency", "dimensions", "cause", "decision")},
        **{name: pl.String() for name in ("old_quantity", "new_quantity", "old_amount", "new_amount")},
    }
)
"""`corrections`, with numbers as Postgres writes them; an amount is 0 where it is null."""
_DIGITS = 1_000
_SAME = ("window_start", "account", "model", "currency", "cause", "decision")
Row = dict[str, Any]
Key = tuple[Any, ...]
Sums = tuple[Decimal, Decimal]
"""A quantity and its amount."""
_NOTHING = (Decimal(0), Decimal(0))


@dataclass(frozen=True)
class Chain:
    """A window (OF_WINDOW) and its corrections in order, where the window is not simply their sum.

    On-time usage may have come between them: only usage row by row shows it. `outside`: usage that no correction names.
    """

    window: Key
    rows: tuple[Row, ...]
    named: frozenset[int]

    @property
    def meter(self) -> str:
        """Of the window."""
        return str(self.window[OF_WINDOW.index("meter")])


@dataclass
class Corrections:
    """What the corrections of some windows come to, and which entries of usage they name."""

    wrong: Wrong
    chains: list[Chain] = field(default_factory=list)
    named: list[tuple[int, str]] = field(default_factory=list)


def explain_corrections(stored: pl.DataFrame, alone: pl.DataFrame, windows: pl.DataFrame) -> Corrections:
    """CORRECTIONS, single rows (bills.MADE_ALONE) and stored WINDOWS, of the same windows."""
    with localcontext(prec=_DIGITS):
        separate = {(row["usage_lsn"], row["meter"]): row for row in alone.iter_rows(named=True)}
        rows = stored.sort("number").to_dicts()
        for row in rows:
            row["lsns"] = [int(lsn) for lsn in row["usage_lsns"].strip("{}").split(",")]
        reported_by = [(lsn, row["meter"]) for row in rows for lsn in row["lsns"]]
        sentences = [*_one_by_one(rows, separate), *_left_out(separate, set(reported_by)), *_twice(reported_by)]
        found = Corrections(Wrong(len(rows), len(sentences), sentences[0] if sentences else ""), named=reported_by)
        by_window = defaultdict(list)
        for row in rows:
            by_window[tuple(row[name] for name in OF_WINDOW)].append(row)
        totals = _totals(windows, by_window)
        for window, chain in by_window.items():
            if not _is_unbroken(chain, totals.get(window, _NOTHING)):
                found.chains.append(Chain(window, tuple(chain), frozenset(lsn for row in chain for lsn in row["lsns"])))
        return found


def _one_by_one(rows: list[Row], separate: dict[tuple[int, str], Row]) -> Iterator[str]:
    """Whether each correction is of the rows that it names, and states their change."""
    for row in rows:
        of_it = [separate.get((lsn, row["meter"])) for lsn in row["lsns"]]
        if wrong := _wrong(row, of_it):
            yield f"{_name(row)} {wrong}"


def _name(row: Row) -> str:
    return (
        f"the correction {row['meter']} of usage {row['usage_lsn']} "
        f"({row['account']}, in the window {value_text(row['window_start'])})"
    )


def _wrong(row: Row, of_it: list[Row | None]) -> str:
    known = [entry for entry in of_it if entry is not None]
    if len(known) < len(of_it):
        return "names usage that changed nothing of its window"
    if row["usage_lsn"] != min(row["lsns"]):
        return "is not named by its lowest usage lsn"
    # What a migration made of earlier stragglers has no dimensions.
    for name in (*_SAME, *(["dimensions"] if row["dimensions"] is not None else [])):
        if others := [entry[name] for entry in known if entry[name] != row[name]]:
            return f"says {name} {value_text(row[name])}, and its usage {value_text(others[0])}"
    if row["decision"] is not None and row["decision"] not in BILLED:
        return f"is of a straggler that is not in its window ({row['decision']})"
    changed, sums = _minus(_new(row), _old(row)), _plus(_of_entry(entry) for entry in known)
    if changed != sums:
        quantity, amount = changed
        return f"changes {_short(quantity)} ({_short(amount)}), and its usage {_short(sums[0])} ({_short(sums[1])})"
    return ""


def _left_out(separate: dict[tuple[int, str], Row], named: set[tuple[int, str]]) -> Iterator[str]:
    """A straggler is always a correction; a correcting row is one where usage records that its window had closed."""
    for (lsn, meter), row in separate.items():
        is_straggler = row["cause"] == UsageCause.STREAM
        is_one = row["decision"] in BILLED if is_straggler else row["was_closed"] and row["decision"] in (None, *BILLED)
        if is_one and (lsn, meter) not in named:
            window = f"of {row['account']} of {value_text(row['window_start'])}"
            yield f"{meter} of usage {lsn} changed the window {window} and is no correction"


def _twice(reported_by: list[tuple[int, str]]) -> Iterator[str]:
    for (lsn, meter), count in Counter(reported_by).items():
        if count > 1:
            yield f"{meter} of usage {lsn} is in {count} corrections"


def _totals(windows: pl.DataFrame, of: Iterable[Key]) -> dict[Key, Sums]:
    """What the windows that have corrections are by now, all price versions together."""
    wanted = pl.DataFrame(list(of), schema={name: WINDOWS[name] for name in OF_WINDOW}, orient="row")
    found: dict[Key, Sums] = {}
    for row in windows.join(wanted, on=OF_WINDOW, how="semi", nulls_equal=True).iter_rows(named=True):
        key = tuple(row[name] for name in OF_WINDOW)
        found[key] = _plus([found.get(key, _NOTHING), _of_entry(row)])
    return found


def _is_unbroken(chain: list[Row], total: Sums) -> bool:
    """Nothing came between the corrections, nor after them: the common case."""
    ends = [*(_old(row) for row in chain[1:]), total]
    return all(_new(row) == end for row, end in zip(chain, ends, strict=True))


def unexplained_change(chain: Chain, outside: Iterable[tuple[int, Decimal, Decimal | None]]) -> str:
    """Whether between a window's corrections only came what came, in a sentence; empty where all is explained.

    `outside`: (usage lsn, signed quantity, unit price) of usage in the window and in no correction. A correction
    begins with what was there before its batch and what its batch brought: with some first part of it, at least what
    has lower numbers.
    """
    with localcontext(prec=_DIGITS):
        parts = sorted((lsn, _times(quantity, price)) for lsn, quantity, price in outside)
        reached, before, changed = 0, _NOTHING, _NOTHING
        for row in chain.rows:
            base = _minus(_old(row), changed)
            while reached < len(parts) and (before != base or parts[reached][0] < row["usage_lsn"]):
                before = _plus([before, parts[reached][1]])
                reached += 1
            if before != base:
                quantity, amount = _old(row)
                return (
                    f"the correction {row['meter']} of usage {row['usage_lsn']} begins with {_short(quantity)} "
                    f"({_short(amount)}), which the window {key_text(chain.window)} never was"
                )
            changed = _plus([changed, _minus(_new(row), _old(row))])
        return ""


def _old(row: Row) -> Sums:
    return Decimal(row["old_quantity"]), Decimal(row["old_amount"])


def _new(row: Row) -> Sums:
    return Decimal(row["new_quantity"]), Decimal(row["new_amount"])


def _of_entry(row: Row) -> Sums:
    quantity, amount = _times(row["quantity"] - row.get("contained_quantity", 0), row["unit_price"])
    return quantity + row.get("contained_quantity", 0), amount


def _times(quantity: Decimal, unit_price: Decimal | None) -> Sums:
    return quantity, Decimal(0) if unit_price is None else quantity * unit_price


def _plus(parts: Iterable[Sums]) -> Sums:
    quantity, amount = _NOTHING
    for more, worth in parts:
        quantity, amount = quantity + more, amount + worth
    return quantity, amount


def _minus(left: Sums, other: Sums) -> Sums:
    return left[0] - other[0], left[1] - other[1]


def _short(number: Decimal) -> str:
    return f"{number.normalize():f}"
