"""Keeps `catalog.effective_prices_now`, accounts ⋈ plans ⋈ prices as a table; `jobs.queries.contracts` reads it.

`catalog.effective_prices_due` has whose rows changed, by triggers of the catalog, and when the clock changes them next,
by the fold before. A fold reads the rows of some of these accounts from `catalog.contracts_at`, the one definition, and
writes those that differ. Nothing is billed from the table, and readers read the view for whom a note is due: a fold
that is late, was cut anywhere or fails makes no answer wrong.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
import structlog

from jobs.queries.contracts import TERMS
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.unavailable import database_is_unavailable
from metering.instants import Clock

log = structlog.get_logger()

NOTES_OF_A_FOLD = 50
"""Whose accounts are read again in one transaction: batches of events wait for it."""
ACCOUNTS_PER_NOTE = 20
"""How many accounts a fold gives a note of their own, for each note that it takes: a plan may have a million."""
LOOK_SECONDS = 2.0
RETRY_SECONDS = 60.0
"""After a fold that failed."""
FOLDS_BEFORE_MORE = 100
"""After so many that were done a fold takes twice as many notes again: a database that was slow may be fast by now."""

COLUMNS = (
    *("account", "account_name", "plan", "plan_name", "currency", "model", "meter", "unit_price", "effective_from"),
    *("in_force_until", "account_from", "changed_at", "terms"),
)
MAX_STATEMENT_SECONDS = 5.0
_PATIENCE = "SELECT set_config('statement_timeout', %s, true), set_config('lock_timeout', '1s', true)"
"""A lock on the catalog must not hold up events."""
_IN_THE_WAY = (
    psycopg.errors.QueryCanceled,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)
NOT_FOLDED = "the table of effective prices cannot be folded: its readers read the view"
IS_DUE = "SELECT EXISTS (SELECT FROM catalog.effective_prices_due WHERE due_at <= now()), now()"
# Notes are deleted before rows are read, each by a statement of its own: a change that is committed between them is
# read, and its note stays. One of a plan may be committed behind the first: it waits for the next fold.
# A note that was spread in part comes first. What is noted again meanwhile is spread from the start, after that.
_TAKE_SHARED = """
WITH next AS (
    SELECT plan, spread_to FROM catalog.effective_prices_due WHERE account = ''
    ORDER BY spread_to = '', noted_at, plan LIMIT 1
), taken AS (
    DELETE FROM catalog.effective_prices_due AS due USING next
    WHERE due.account = '' AND (due.plan, due.spread_to) = (next.plan, next.spread_to)
    RETURNING due.plan, due.spread_to, due.noted_at
)
SELECT plan, spread_to, min(noted_at) FROM taken GROUP BY plan, spread_to
"""
# An account that is noted already is read after both changes: notes of a plan that changes every minute do not pile up.
_SPREAD = """
WITH accounts AS ({accounts} ORDER BY account LIMIT %(accounts)s), noted AS (
    INSERT INTO catalog.effective_prices_due (account, noted_at) SELECT account, %(noted_at)s FROM accounts
    WHERE NOT EXISTS (
        SELECT FROM catalog.effective_prices_due AS due
        WHERE due.account = accounts.account AND due.due_at = '-infinity'
    )
), rest AS (
    INSERT INTO catalog.effective_prices_due (plan, spread_to, noted_at)
    SELECT %(plan)s, max(account), %(noted_at)s FROM accounts HAVING count(*) = %(accounts)s
)
SELECT count(*) FROM accounts
"""
_SPREAD_PLAN = _SPREAD.format(
    accounts="SELECT DISTINCT account FROM catalog.account_history WHERE plan = %(plan)s AND account > %(spread_to)s"
)
# Each table by itself, so that neither is read to its end.
_SPREAD_ALL = _SPREAD.format(
    accounts=" UNION ".join(
        f"(SELECT DISTINCT account FROM catalog.{table} WHERE account > %(spread_to)s ORDER BY account"
        " LIMIT %(accounts)s)"
        for table in ("account_history", "effective_prices_now")
    )
)
# Those that wait longest, of changes and of the clock: where changes outpace the folds each account has its turn.
_TAKE = """
WITH due AS (
    (SELECT account, noted_at AS since FROM catalog.effective_prices_due WHERE due_at = '-infinity' AND account <> ''
    ORDER BY noted_at LIMIT %(notes)s)
    UNION ALL
    (SELECT account, due_at FROM catalog.effective_prices_due WHERE due_at > '-infinity' AND due_at <= %(at)s
    ORDER BY due_at LIMIT %(notes)s)
    ORDER BY since LIMIT %(notes)s
), taken AS (
    DELETE FROM catalog.effective_prices_due WHERE account IN (SELECT account FROM due) RETURNING account
)
SELECT DISTINCT account FROM taken ORDER BY account
"""
_OTHERS = ", ".join(name for name in COLUMNS if name not in ("account", "model", "meter"))
_SAME = f"""
    SELECT FROM {{other}} AS other
    WHERE (other.account, other.model, other.meter) = (own.account, own.model, own.meter)
      AND ({", ".join(f"other.{name}" for name in _OTHERS.split(", "))})
          IS NOT DISTINCT FROM ({", ".join(f"own.{name}" for name in _OTHERS.split(", "))})
"""
_FOLD = f"""
WITH effective AS MATERIALIZED (
    SELECT {", ".join(f"paid.{name}" for name in COLUMNS if name != "terms")},
           coalesce(priced.terms, ended.terms) AS terms
    FROM catalog.contracts_at(%(at)s) AS paid {TERMS} WHERE account = ANY (%(accounts)s)
), stored AS MATERIALIZED (
    SELECT ctid AS place, * FROM catalog.effective_prices_now WHERE account = ANY (%(accounts)s)
), replaced AS (
    DELETE FROM catalog.effective_prices_now WHERE ctid = ANY (ARRAY(
        SELECT place FROM stored AS own WHERE NOT EXISTS ({_SAME.format(other="effective")})
    ))
)
INSERT INTO catalog.effective_prices_now ({", ".join(COLUMNS)})
SELECT {", ".join(COLUMNS)} FROM effective AS own WHERE NOT EXISTS ({_SAME.format(other="stored")})
"""
# When a row of an account begins or ends next, by what is announced.
_NEXT = """
WITH held AS (
    SELECT account, plan, currency, effective_from, holds_until FROM catalog.account_history
    WHERE account = ANY (%(accounts)s) AND holds_until > %(at)s
), announced AS (
    SELECT plan, currency, min(effective_from) AS begins FROM (
        SELECT plan, currency, effective_from FROM catalog.prices
        UNION ALL
        SELECT plan, currency, effective_from FROM catalog.ended_prices
    ) AS every WHERE plan IN (SELECT plan FROM held) AND effective_from > %(at)s GROUP BY plan, currency
), changes AS (
    SELECT account, effective_from AS changes_at FROM held
    UNION ALL
    SELECT account, holds_until FROM held
    UNION ALL
    SELECT account, begins FROM held JOIN announced USING (plan, currency)
    UNION ALL
    SELECT account, in_force_until FROM catalog.effective_prices_now WHERE account = ANY (%(accounts)s)
)
INSERT INTO catalog.effective_prices_due (account, due_at)
SELECT account, min(changes_at) FROM changes WHERE changes_at > %(at)s AND changes_at < 'infinity' GROUP BY account
"""
# The database's clock may have been set back.
_REACHED = """
INSERT INTO catalog.effective_prices_progress AS stored (as_of) VALUES (%(at)s)
ON CONFLICT (is_only) DO UPDATE SET as_of = greatest(stored.as_of, excluded.as_of)
"""


def fold_effective_prices(
    cursor: psycopg.Cursor[Any],
    at: datetime,
    notes: int = NOTES_OF_A_FOLD,
    accounts_per_note: int = ACCOUNTS_PER_NOTE,
) -> int:
    """Read the rows of the accounts of at most so many notes that are due `at`, as of then.

    Before that, at most as many notes of plans and of everybody become notes of at most `notes * accounts_per_note`
    accounts.
    Gives how many notes were spread and accounts were read: 0 when nothing is due. Within a transaction, of one driver
    at a time. A note that comes while it runs is left.
    """
    shared = _spread(cursor, notes, notes * accounts_per_note)
    due = [account for (account,) in cursor.execute(_TAKE, {"at": at, "notes": notes}).fetchall()]
    if due:
        for statement in (_FOLD, _NEXT, _REACHED):
            cursor.execute(statement, {"at": at, "accounts": due})
    return shared + len(due)


def _spread(cursor: psycopg.Cursor[Any], notes: int, room: int) -> int:
    """How many notes of plans or of everybody were spread, over `room` accounts; of the last one a rest may stay."""
    for spread in range(notes):
        shared = cursor.execute(_TAKE_SHARED).fetchone() if room else None
        if shared is None:
            return spread
        plan, spread_to, noted_at = shared
        found = cursor.execute(
            _SPREAD_PLAN if plan else _SPREAD_ALL,
            {"plan": plan, "spread_to": spread_to, "noted_at": noted_at, "accounts": room},
        ).fetchone()
        assert found is not None
        room -= found[0]
    return notes


class EffectivePrices:
    """Folds when something is due, for one driver.

    After a fold whose statement took too long the next one takes half as many notes, and so on until one is done. Folds
    stay as small until nothing is due, or FOLDS_BEFORE_MORE were done: while changes keep coming something always is.
    """

    def __init__(
        self, ownership: Ownership, clock: Clock, max_statement_seconds: float = MAX_STATEMENT_SECONDS
    ) -> None:
        self._ownership, self._clock = ownership, clock
        self._patience = [f"{round(1_000 * max_statement_seconds)}ms"]
        self._look_at = clock.monotonic()
        self._notes, self._done = NOTES_OF_A_FOLD, 0

    def fold_if_due(self) -> None:
        """One fold at most. Raises Fenced, and NotYet when the database does not answer."""
        if self._clock.monotonic() < self._look_at:
            return
        wait = LOOK_SECONDS
        try:
            at = self._look()
            if at is None:
                self._notes = NOTES_OF_A_FOLD
            else:
                with self._ownership.transaction() as cursor:
                    is_folded = self._fold(cursor, at)
                # There may be more.
                wait = 0.0 if is_folded else RETRY_SECONDS
        except psycopg.Error as error:
            if database_is_unavailable(error):
                self._ownership.resume()
            log.warning(NOT_FOLDED, error=str(error))
            wait = RETRY_SECONDS
        self._look_at = self._clock.monotonic() + wait

    def _look(self) -> datetime | None:
        """As of when to fold; None: nothing is due. A lock on the notes holds up no events."""
        with self._ownership.connection.transaction(), self._ownership.connection.cursor() as cursor:
            cursor.execute(_PATIENCE, self._patience)
            found = cursor.execute(IS_DUE).fetchone()
        return found[1] if found is not None and found[0] else None

    def _fold(self, cursor: psycopg.Cursor[Any], at: datetime) -> bool:
        """Whether nothing was in its way: else the driver would restart, as for a database that is away, and again."""
        try:
            with cursor.connection.transaction():
                cursor.execute(_PATIENCE, self._patience)
                fold_effective_prices(cursor, at, self._notes)
        except _IN_THE_WAY as error:
            if isinstance(error, psycopg.errors.QueryCanceled):
                self._notes = max(1, self._notes // 2)
                self._done = 0
            log.warning(NOT_FOLDED, error=str(error), next_notes=self._notes)
            return False
        self._done += 1
        if self._done % FOLDS_BEFORE_MORE == 0:
            self._notes = min(2 * self._notes, NOTES_OF_A_FOLD)
        return True
