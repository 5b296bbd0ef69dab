"""Requests and completions of one batch → outcomes, by Spark's built-in operators. `rules.fold` is the same in Python.

Nearly every key is uncontested (`pairs.split`): it is decided by comparison. The fold, which Spark interprets, runs
only for the keys that have more rows than a pair.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.event_time.windows import EPOCH
from jobs.joins.pairs import TOKENS
from jobs.streams import EventType

MICROSECOND = timedelta(microseconds=1)

REQUEST, COMPLETION, BOTH = 1, 2, 3
"""Sides as numbers: `3 - side` is the other one."""

_ROW = f"""struct(
    lsn,
    CASE coalesce(decided_side, type)
        WHEN '{EventType.REQUEST}' THEN {REQUEST} WHEN 'request' THEN {REQUEST}
        WHEN '{EventType.COMPLETION}' THEN {COMPLETION} WHEN 'completion' THEN {COMPLETION}
        ELSE {BOTH} END AS side,
    decided_side IS NOT NULL AS decided,
    unix_micros(received_at) AS received_us,
    user_id, model, status, input_tokens, output_tokens, cached_tokens, event_time)"""


def _found(request: str, completion: str, superseded: str = "false") -> str:
    return f"named_struct('request', {request}, 'completion', {completion}, 'superseded', {superseded})"


def _alone(row: str, superseded: str = "false") -> str:
    """One row by itself: `usage.v1` stands on both sides."""
    return _found(f"IF({row}.side = {COMPLETION}, null, {row})", f"IF({row}.side = {REQUEST}, null, {row})", superseded)


def _let(name: str, value: str, body: str) -> str:
    """`body`, in which `name` stands for `value`: computed once, which SQL has no other word for."""
    return f"get(transform(array({value}), {name} -> {body}), 0)"


def _by_lsn(lsn: str) -> str:
    return f"get(filter(rows, r -> r.lsn = {lsn}), 0)"


def _winner(row: str, side: int | str, partner: str) -> str:
    """`partner` is the lsn it was matched with, null while it waits, 0 when an earlier batch decided it."""
    return (
        f"named_struct('lsn', {row}.lsn, 'side', {side}, 'received_us', {row}.received_us, "
        f"'partner', CAST({partner} AS LONG))"
    )


def _winners(timeout_us: int) -> str:
    """The fold over `rows`, which are in lsn order: the winners of one key."""
    acts_as = f"""CASE
        WHEN row.side < {BOTH} THEN row.side
        WHEN exists(near, w -> w.side = {REQUEST}) THEN {COMPLETION}
        WHEN size(near) > 0 THEN {REQUEST} ELSE {BOTH} END"""
    partner = "get(filter(near, w -> w.side = 3 - acts_as AND w.partner IS NULL), 0).lsn"
    is_partner = "w.side = 3 - acts_as AND w.lsn <=> partner_lsn"
    met = f"transform(winners, w -> IF({is_partner}, {_winner('w', 'w.side', 'row.lsn')}, w))"
    decide = f"""CASE
        WHEN acts_as = {BOTH}
            THEN concat(winners, array({_winner("row", REQUEST, "row.lsn")}, {_winner("row", COMPLETION, "row.lsn")}))
        WHEN exists(near, w -> w.side = acts_as) OR (row.side = {BOTH} AND partner_lsn IS NULL) THEN winners
        ELSE concat({met}, array({_winner("row", "acts_as", "partner_lsn")})) END"""
    remembered = f"""concat(winners, filter(
        array({_winner("row", REQUEST, "0")}, {_winner("row", COMPLETION, "0")}), w -> row.side IN ({BOTH}, w.side)))"""
    near = f"filter(winners, w -> abs(w.received_us - row.received_us) <= {timeout_us})"
    fold = _let("near", near, _let("acts_as", acts_as, _let("partner_lsn", partner, decide)))
    none = "CAST(array() AS ARRAY<STRUCT<lsn: LONG, side: INT, received_us: LONG, partner: LONG>>)"
    return f"aggregate(rows, {none}, (winners, row) -> IF(row.decided, {remembered}, {fold}))"


def _outcomes(timeout_us: int) -> str:
    """All rows of one key → array of (request, completion, superseded); what waits has one side."""
    begun = f"IF(w.side = {REQUEST}, {_by_lsn('w.lsn')}, null)"
    ended = _by_lsn(f"IF(w.side = {COMPLETION}, w.lsn, w.partner)")
    is_told = f"w.partner IS NULL OR (w.side = {REQUEST} AND w.partner > 0)"
    won = f"transform(filter(winners, w -> {is_told}), w -> {_found(begun, ended)})"
    is_lost = "NOT row.decided AND NOT exists(winners, w -> w.lsn = row.lsn)"
    lost = f"transform(filter(rows, row -> {is_lost}), row -> {_alone('row', 'true')})"
    return _let("rows", "array_sort(rows)", _let("winners", _winners(timeout_us), f"concat({won}, {lost})"))


_LAST_US = "greatest(request_us, completion_us)"

_IS_MATCHED = "request_lsn IS NOT NULL AND completion_lsn IS NOT NULL"


def _contested(rows: DataFrame, timeout_us: int) -> DataFrame:
    """All rows of contested keys → one row per outcome and per row that waits, as `pairs.split` gives them."""
    # Sorted by key, the rows of one key are collected one key at a time, in constant memory.
    by_key = rows.repartition("account", "request_id").sortWithinPartitions("account", "request_id")
    found = by_key.groupBy("account", "request_id").agg(F.expr(f"collect_list({_ROW}) AS rows"))
    return found.selectExpr("account", "request_id", f"inline({_outcomes(timeout_us)})").selectExpr(
        "account",
        "request_id",
        "request.lsn AS request_lsn",
        "completion.lsn AS completion_lsn",
        "request.received_us AS request_us",
        "completion.received_us AS completion_us",
        "coalesce(completion.event_time, request.event_time) AS event_time",
        "request.user_id",
        "request.model",
        "completion.status",
        *[f"completion.{meter}" for meter in TOKENS],
        "superseded",
    )


def resolve(
    pairs: DataFrame, contested: DataFrame | None, timeout_seconds: int, frontier: datetime | None
) -> DataFrame:
    """Both parts that `pairs.split` gives → one row per outcome, and one per row that waits.

    `contested`: None when there are no such rows. A row with a `decided_side` was matched in an earlier batch; it only
    supersedes others. `frontier` None: nobody gives up waiting.

    Result: account, request_id, outcome (null: waits), request_lsn, completion_lsn, user_id, model, status, event_time,
    received_at (when the outcome became a fact), and per meter its quantity: null is not reported.
    """
    timeout_us = timeout_seconds * 1_000_000
    frontier_us = "CAST(null AS LONG)" if frontier is None else f"{(frontier - EPOCH) // MICROSECOND}L"
    each = pairs.selectExpr("*", "false AS superseded")
    if contested is not None:
        each = each.unionByName(_contested(contested, timeout_us))
    # The frontier stands in an array because Spark writes a bare number into the generated code, and would compile it
    # anew for each batch.
    is_over = f"coalesce({_LAST_US} + {timeout_us} < get(array({frontier_us}), int(superseded)), false)"
    outcome = f"""CASE WHEN superseded THEN 'superseded' WHEN {_IS_MATCHED} THEN 'matched'
        WHEN {is_over} THEN IF(request_lsn IS NOT NULL, 'abandoned', 'orphaned') END AS outcome"""
    return each.selectExpr("*", outcome).selectExpr(
        "account",
        "request_id",
        "outcome",
        "request_lsn",
        "completion_lsn",
        "user_id",
        "model",
        "status",
        "event_time",
        f"timestamp_micros({_LAST_US} + IF(outcome IN ('abandoned', 'orphaned'), {timeout_us}, 0)) AS received_at",
        "CASE WHEN outcome IN ('matched', 'abandoned') THEN 1L WHEN outcome IS NOT NULL THEN 0L END AS requests",
        *[f"IF(superseded, 0L, {meter}) AS {meter}" for meter in TOKENS],
    )
