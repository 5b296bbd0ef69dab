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
LOOK_SECONDS = 2.0
RETRY_SECONDS = 60.0
"""After a fold that failed."""

COLUMNS = (
    *("account", "account_name", "plan", "plan_name", "currency", "model", "meter", "unit_price", "effective_from"),
    *("in_force_until", "account_from", "changed_at", "terms"),
)
_PATIENCE = "SELECT set_config('statement_timeout', '5s', true), set_config('lock_timeout', '1s', true)"
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
_EXPAND = """
WITH expanded AS (DELETE FROM catalog.effective_prices_due WHERE account = '' RETURNING plan, noted_at)
INSERT INTO catalog.effective_prices_due (account, noted_at)
SELECT account, min(noted_at) FROM (
    SELECT history.account, noted_at FROM expanded JOIN catalog.account_history AS history USING (plan)
    WHERE expanded.plan <> ''
    UNION ALL
    SELECT account, noted_at FROM expanded CROSS JOIN (
        SELECT account FROM catalog.account_history UNION SELECT account FROM catalog.effective_prices_now
    ) AS every WHERE expanded.plan = ''
) AS noted GROUP BY account
"""
_TAKE = """
WITH due AS (
    SELECT account FROM catalog.effective_prices_due WHERE due_at <= %(at)s AND account <> ''
    ORDER BY due_at LIMIT %(notes)s
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


def fold_effective_prices(cursor: psycopg.Cursor[Any], at: datetime, notes: int = NOTES_OF_A_FOLD) -> int:
    """Read the rows of the accounts of at most so many notes that are due `at`, as of then; gives how many accounts.

    Within a transaction, of one driver at a time. A note that comes while it runs is left.
    """
    cursor.execute(_EXPAND)
    due = [account for (account,) in cursor.execute(_TAKE, {"at": at, "notes": notes}).fetchall()]
    if due:
        for statement in (_FOLD, _NEXT, _REACHED):
            cursor.execute(statement, {"at": at, "accounts": due})
    return len(due)


class EffectivePrices:
    """Folds when something is due, for one driver."""

    def __init__(self, ownership: Ownership, clock: Clock) -> None:
        self._ownership, self._clock = ownership, clock
        self._look_at = clock.monotonic()

    def fold_if_due(self) -> None:
        """One fold at most. Raises Fenced, and NotYet when the database does not answer."""
        if self._clock.monotonic() < self._look_at:
            return
        wait = LOOK_SECONDS
        try:
            found = self._ownership.connection.execute(IS_DUE).fetchone()
            if found is not None and found[0]:
                with self._ownership.transaction() as cursor:
                    is_folded = self._fold(cursor, found[1])
                # There may be more.
                wait = 0.0 if is_folded else RETRY_SECONDS
        except psycopg.Error as error:
            if database_is_unavailable(error):
                self._ownership.resume()
            log.warning(NOT_FOLDED, error=str(error))
            wait = RETRY_SECONDS
        self._look_at = self._clock.monotonic() + wait

    @staticmethod
    def _fold(cursor: psycopg.Cursor[Any], at: datetime) -> bool:
        """Whether nothing was in its way: else the driver would restart, as for a database that is away, and again."""
        try:
            with cursor.connection.transaction():
                cursor.execute(_PATIENCE)
                fold_effective_prices(cursor, at)
        except _IN_THE_WAY as error:
            log.warning(NOT_FOLDED, error=str(error))
            return False
        return True
