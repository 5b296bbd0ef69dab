"""Outcomes that a meter does not count because another outcome of the same content counts (`once_per`): which one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import polars as pl
from deltalake import DeltaTable

from jobs.explain.records import Tables
from jobs.joins.memory import KEY
from jobs.journal.families import is_reversal
from jobs.runtime.effective_rules import History, read_history, rules_at
from jobs.settings.stored_meters import restored
from jobs.usage_entries import METERS
from metering.contracts.reversals import METER, QUANTITY
from metering.instants import rfc3339
from metering.meters import Declaration
from metering.once_per import OncePer, duration_of
from metering.vocabulary import UsageCause
from metering.windows import Window, tumbling

MAX_EXPLAINED = 20
"""At most this many entries: for each, all usage of its window is read."""
_PARTS = ("completion_lsn", "request_lsn")
Row = Mapping[str, Any]


def contents_of(tables: Tables, usage_table: DeltaTable | None, usage: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of usage (USAGE_READ) → the meters with quantity 0, because another outcome of the content counts.

    Each has `account, request_id, lsn` (of usage), `meter, column, window_start, window_end`, and an
    `explanation` that names the one which counts. At most MAX_EXPLAINED.
    """
    if usage_table is None or METERS not in usage.columns or (usage["cause"] == UsageCause.STREAM.value).all():
        return []
    history, _ = read_history(usage_table)
    found = []
    of_windows: dict[tuple[str, Window], pl.DataFrame] = {}
    reversed_keys = set(usage.filter(cause=UsageCause.REVERSED.value).select(KEY).iter_rows())
    for row, declared, rule in _zeros(usage, history):
        meter = declared.name
        if (row["account"], row["request_id"]) in reversed_keys and _is_credited(tables, row, declared):
            continue
        contents = _contents(tables, row, rule.column)
        window = tumbling(row["event_time"], timedelta(seconds=rule.within_seconds))
        place = (row["account"], window)
        if place not in of_windows:
            of_windows[place] = standing(tables.usage_of_window(*place))
        first = _first(tables, of_windows[place], _Asked(meter, rule.column, contents))
        if first is not None:
            found.append(_explained(row, meter, rule, window, first))
        if len(found) == MAX_EXPLAINED:
            break
    return found


@dataclass(frozen=True)
class _Asked:
    """A meter, and what the parts of an outcome say in a column."""

    meter: str
    column: str
    contents: list[str]


def standing(usage: pl.DataFrame) -> pl.DataFrame:
    """Rows of usage that no other row among them takes back."""
    negated = usage.filter(pl.col("sign") < 0)["corrects_lsns"].explode()
    return usage.filter((pl.col("sign") > 0) & ~pl.col("lsn").is_in(negated.implode()))


def _zeros(usage: pl.DataFrame, history: History) -> Iterator[tuple[Row, Declaration, OncePer]]:
    """The effective rows of audits, each with a meter that counts a content once and has quantity 0 there."""
    put = pl.col("cause").ne(UsageCause.STREAM.value) & pl.col("cause").ne(UsageCause.DECIDED.value)
    for row in standing(usage).filter(put).iter_rows(named=True):
        decided = max(lsn for lsn in (row["request_lsn"], row["completion_lsn"]) if lsn is not None)
        declared = restored(rules_at(history, decided).get("meters")) if history else ()
        quantities: dict[str, Any] = {}
        for entry in row[METERS] or ():
            if entry["quantity"] is not None:
                quantities[entry["meter"]] = quantities.get(entry["meter"], 0) + entry["quantity"]
        for meter in declared:
            if meter.once_per is not None and quantities.get(meter.name) == 0:
                yield row, meter, meter.once_per


def _is_credited(tables: Tables, row: Row, meter: Declaration) -> bool:
    """Whether credits of the request are all that the meter bills of an outcome: then no other one is the reason."""
    of_request = (pl.col("request_id") == row["request_id"]) & (pl.col("account") == row["account"])
    stored = tables.journal.with_columns([METER, QUANTITY, *([meter.sums] if meter.sums else [])])
    if METER not in stored.schema:
        return False
    of_meter = of_request & (pl.col(METER) == meter.name)
    found = stored.rows(of_meter & is_reversal(), ("lsn", "identity", QUANTITY)).sort("lsn")
    taken = found.unique("identity", keep="first")[QUANTITY]
    lsns = [row[part] for part in _PARTS if row[part] is not None]
    reported = stored.by_lsn(lsns[:1], ("lsn", meter.sums))[meter.sums].item() if meter.sums else 1
    return bool(taken.null_count()) or (len(taken) > 0 and taken.sum() >= (reported or 0))


def _contents(tables: Tables, row: Row, column: str) -> list[str]:
    """What the parts of an outcome say in a column."""
    lsns = [row[part] for part in _PARTS if row[part] is not None]
    stored = tables.journal.with_columns([column])
    if column not in stored.schema:
        return []
    return stored.by_lsn(lsns, ("lsn", column))[column].drop_nulls().unique().to_list()


def _first(tables: Tables, usage: pl.DataFrame, query: _Asked) -> dict[str, Any] | None:
    """The outcome of this content, among effective usage of a window, that the meter counts."""
    entries = usage.select("account", "request_id", "event_time", *_PARTS, METERS).explode(METERS).unnest(METERS)
    counted = entries.filter((pl.col("meter") == query.meter) & (pl.col("quantity") > 0)).sort("event_time")
    lsns = pl.concat([counted[part] for part in _PARTS]).drop_nulls()
    rows = tables.journal.with_columns([query.column]).by_lsn(lsns, ("lsn", "id", query.column))
    of_content = rows.filter(pl.col(query.column).is_in(query.contents))
    for row in counted.iter_rows(named=True):
        if of_content["lsn"].is_in([row[part] for part in _PARTS]).any():
            occurred = next(row[part] for part in _PARTS if row[part] is not None)
            return {**row, "id": rows.filter(lsn=occurred)["id"].item()}
    return None


def _explained(row: Row, meter: str, rule: OncePer, window: Window, first: Row) -> dict[str, Any]:
    within = duration_of(rule.within_seconds)
    return {
        **{name: row[name] for name in ("account", "request_id", "lsn")},
        "meter": meter,
        "column": rule.column,
        "window_start": window.start,
        "window_end": window.end,
        "explanation": f"{meter} counts 0 of request {row['request_id']}: another outcome of the same {rule.column} "
        f"counted in its {within} from {rfc3339(window.start)}, that of request {first['request_id']} (event "
        f"{first['id']}, {rfc3339(first['event_time'])})",
    }
