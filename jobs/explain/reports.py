"""The reports of a request that has several: what each reported, which one bills, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import polars as pl
from deltalake import DeltaTable

from jobs.explain.records import DEFAULT_PERIOD, Tables
from jobs.journal.families import family
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.effective_rules import History, read_history, rules_at
from jobs.settings.stored_meters import restored
from metering.joining import Side
from metering.meters import DEFAULT, REPORTED_COLUMNS, columns_of
from metering.ranking import Criterion, Ranked, Received, deciding_criterion, ranked, reach_seconds
from metering.vocabulary import OF_REQUESTS, Disposition, Outcome, Status, UsageCause, UsageSource

Row = Mapping[str, Any]
KEY = ("account", "request_id")
_CAUSES = (UsageCause.RESTATED.value, UsageCause.DUPLICATE.value)
_JOURNAL = (
    *("lsn", *KEY, "id", "identity", "type", "family", "event_time", "received_at", "first_received_at"),
    *("status", "usage_source", "disposition"),
)
_USAGE = ("lsn", *KEY, "outcome", "completion_lsn", "sign", "cause")
MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class _Key:
    """All rows of one key: of the journal by lsn, each event once; and which of its reports usage bills by now."""

    rows: Mapping[int, Row]
    received: Sequence[Received]
    billed: Collection[int]
    superseded: Collection[int]


def reports_of(tables: Tables, usage_table: DeltaTable | None, usage: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of usage (USAGE) → the reports of requests that have several.

    Each has `account, request_id, lsn, id, status, usage_source, event_time, first_received_at`, its `quantities` by
    column, `bills`, and an `explanation`: why it bills, or why another one does.
    """
    is_superseded = pl.col("outcome") == Outcome.SUPERSEDED.value
    contested = usage.filter(is_superseded | pl.col("cause").is_in(_CAUSES))
    if usage_table is None or contested.is_empty():
        return []
    history, _ = read_history(usage_table)
    columns = _columns(history)
    reports = []
    for key in _keys(tables, contested, history, columns):
        is_ranked = bool(history) and bool(rules_at(history, min(key.rows)).get("best_report_bills"))
        found = _by_rank(key, history) if is_ranked else _by_order(key)
        reports += [
            {
                **{name: key.rows[lsn][name] for name in (*KEY, "lsn", "id", "status", "usage_source", "event_time")},
                "first_received_at": key.rows[lsn]["first_received_at"],
                "quantities": {name: value for name in columns if (value := key.rows[lsn].get(name)) is not None},
                "bills": lsn in key.billed,
                "explanation": explanation,
            }
            for lsn, explanation in sorted(found)
        ]
    return reports


def _columns(history: History) -> list[str]:
    """The columns of the journal that meters ever added up."""
    declared = (columns_of(restored(effective.rules.get("meters"))) for effective in history)
    return list(dict.fromkeys([*REPORTED_COLUMNS, *(name for names in declared for name in names)]))


def _keys(tables: Tables, contested: pl.DataFrame, history: History, columns: Sequence[str]) -> Iterator[_Key]:
    keys = contested.select(KEY).unique()
    is_wanted = pl.col("request_id").is_in(keys["request_id"].unique().implode())
    times = contested["received_at"].to_list()
    since, until = min(times) - DEFAULT_PERIOD, max(times) + DEFAULT_PERIOD
    stored = tables.journal.with_columns(columns)
    known = [name for name in columns if name in stored.schema]
    is_event = (pl.col("disposition") == Disposition.ACCEPTED.value) & family().is_in(list(OF_REQUESTS))
    rows = stored.between("received_at", since, until).rows(is_wanted & is_event, (*_JOURNAL, *known))
    rows = rows.join(keys, on=KEY, how="semi").with_columns(
        family(), first_received_at=pl.coalesce("first_received_at", "received_at")
    )
    made = tables.usage.between("received_at", since, None).rows(is_wanted, _USAGE).join(keys, on=KEY, how="semi")
    made = made.filter((pl.col("cause") != UsageCause.DECIDED.value) & pl.col("completion_lsn").is_not_null())
    outcomes = made.group_by(*KEY, "completion_lsn", is_superseded=pl.col("outcome") == Outcome.SUPERSEDED.value).agg(
        pl.col("sign").sum()
    )
    standing = outcomes.filter(pl.col("sign") > 0)
    billed = set(standing.filter(~pl.col("is_superseded"))["completion_lsn"])
    superseded = set(standing.filter("is_superseded")["completion_lsn"]) - billed
    listed = rows.sort(*KEY, "lsn").iter_rows(named=True)
    for _, of_key in groupby(listed, key=lambda row: (row["account"], row["request_id"])):
        by_lsn = _each_once(of_key, billed)
        received = [_received(row, history) for row in by_lsn.values()]
        yield _Key(by_lsn, received, billed & by_lsn.keys(), superseded & by_lsn.keys())


def _each_once(rows: Iterable[Row], billed: Collection[int]) -> dict[int, Row]:
    """By lsn. Of an event that was accepted twice the row that is billed, else the first."""
    by_identity: dict[bytes | int, Row] = {}
    for row in rows:
        name = row["identity"] or row["lsn"]
        if name not in by_identity or (row["lsn"] in billed and by_identity[name]["lsn"] not in billed):
            by_identity[name] = row
    return {row["lsn"]: row for row in by_identity.values()}


def _received(row: Row, history: History) -> Received:
    rules = rules_at(history, row["lsn"]) if history else {}
    meters = restored(rules.get("meters")) if rules else DEFAULT
    has_quantities = any(row.get(column) is not None for column in columns_of(meters))
    received_us, occurred_us = (microseconds_of(row[name]) for name in ("first_received_at", "event_time"))
    ranking = (row["status"], row["usage_source"], has_quantities)
    return Received(row["lsn"], Side(row["family"]), received_us, occurred_us, row["identity"] or b"", *ranking)


def _by_rank(key: _Key, history: History) -> Iterator[tuple[int, str]]:
    """Lsn and explanation of each report of a request that has several, where the best one bills."""

    def reach_us(lsn: int) -> int:
        return reach_seconds(rules_at(history, lsn), DEFAULT_PERIOD.total_seconds()) * MICROSECONDS

    by_lsn = {row.lsn: row for row in key.received}
    for request in ranked(key.received, reach_us):
        reports = _reports(request, by_lsn)
        if len(reports) < 2:
            continue
        best, *others = reports
        for report in reports:
            yield report.lsn, _why(key, best, others[0] if report is best else report, reports)


def _reports(request: Ranked, by_lsn: Mapping[int, Received]) -> list[Received]:
    """The reports of a request, the best one first. A request without a completion counts as a report."""
    lsns = {request.request, request.completion, *(row.lsn for row in request.superseded)}
    reports = [by_lsn[lsn] for lsn in lsns if lsn is not None and by_lsn[lsn].side is not Side.REQUEST]
    return sorted(reports, key=lambda row: (row.lsn == request.completion, row.rank), reverse=True)


def _why(key: _Key, best: Received, other: Received, reports: Sequence[Received]) -> str:
    """Why the best report bills and not the other one; or that it does not yet."""
    billed = [row for row in reports if row.lsn in key.billed]
    name = f"event {key.rows[best.lsn]['id']}"
    if best in billed:
        beside = f"; the next audit takes back event {key.rows[other.lsn]['id']}" if other in billed else ""
        return f"{name} bills: {reason(best, other)}{beside}"
    if not billed:
        return f"{name} bills once its request is decided: {reason(best, other)}"
    first = min(billed, key=lambda row: row.lsn)
    return f"event {key.rows[first.lsn]['id']} bills until the next audit, which prefers {name}: {reason(best, first)}"


def reason(best: Received, other: Received) -> str:
    """By which criterion a report ranks above another one, as a clause."""
    clauses = {
        Criterion.STATUS: f"its status {_status(best)} ranks above {_status(other)}",
        Criterion.USAGE_SOURCE: f"its usage_source {_source(best)} ranks above {_source(other)}",
        Criterion.QUANTITIES: "it reports quantities, the other none",
        Criterion.TIME: "it is the later by time",
        Criterion.IDENTITY: "its identity sorts last",
        Criterion.SIDE: f"its side {best.side} sorts after {other.side}",
    }
    criterion = deciding_criterion(best, other)
    return "it was received first" if criterion is None else clauses[criterion]


def _status(report: Received) -> str:
    return report.status or Status.COMPLETED.value


def _source(report: Received) -> str:
    return report.usage_source or UsageSource.PROVIDER.value


def _by_order(key: _Key) -> Iterator[tuple[int, str]]:
    """The same where the first report counts: a key with a row from before the best one billed."""
    because = "the first report of a request counts, as best_report_bills was off"
    reports = {row.lsn for row in key.received if row.side is not Side.REQUEST}
    superseded = reports & {*key.superseded}
    if not superseded:
        return
    for lsn in superseded | (reports & {*key.billed}):
        before = [billed_lsn for billed_lsn in key.billed if billed_lsn <= lsn] or [*key.billed]
        yield lsn, f"event {key.rows[max(before)]['id']} bills: {because}" if before else f"superseded: {because}"
