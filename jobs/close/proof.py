"""Which audit proves a month: the newest one that covers it, if no later audit found a fault."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from jobs.billing.staged import IS_BILLED
from jobs.billing_progress import Database
from jobs.queries.catalog_changes import CHANGES
from jobs.queries.counted_again import counted_again
from jobs.queries.pools import POOLED_BEFORE
from metering.plan_terms import PLAN_MODEL

EARLIER = timedelta(days=2)
"""An event is received at most a day before it occurs, and waits for its partner a day at most: all that belongs to a
month was received from two days before its start on."""
_PROOF = """
    SELECT audit_id, billed_to, coalesce(activity_number, 0) AS activity_number, billed_frontier FROM audits AS proof
    WHERE is_proved AND billed_to IS NOT NULL
      AND (received_from IS NULL OR received_from <= %(since)s) AND (occurred_to IS NULL OR occurred_to >= %(until)s)
      AND NOT EXISTS (SELECT FROM audits AS later WHERE later.audit_id > proof.audit_id AND later.unexpected <> '{}')
    ORDER BY billed_to DESC, audit_id DESC LIMIT 1
"""
# Also what changed in earlier months becomes lines of this invoice.
_CHANGED = """
    SELECT account FROM usage_months
    WHERE account = ANY (%(accounts)s) AND month < %(end)s AND next_position > %(billed_to)s
"""
# What waited until F has passed its deadline is billed then, perhaps without a row of usage: the position stays.
_SETTLED = f"""
    SELECT DISTINCT account FROM stragglers
    WHERE settled > 0 AND hold_until > coalesce(%(billed_frontier)s::timestamptz, '-infinity')
      AND decided_lsn IS NULL AND {IS_BILLED}
      AND account = ANY (%(accounts)s) AND coalesce(day, window_start::date) < %(end)s
"""
# What prices usage, and was changed after the audit began for a time before the month's end: usage is priced as before.
_PRICED_OTHERWISE = f"""
    WITH changes AS (
        SELECT * FROM ({CHANGES}) AS every
        WHERE since < %(end)s + interval '1 day' AND side ->> 'model' IS DISTINCT FROM '{PLAN_MODEL}'
    )
    SELECT DISTINCT account FROM usage_months
    WHERE account = ANY (%(accounts)s) AND month < %(end)s AND (
        account IN (SELECT side ->> 'account' FROM changes WHERE target = 'catalog.accounts')
        OR account IN (
            SELECT history.account FROM changes JOIN catalog.account_history AS history ON plan = side ->> 'plan'
            WHERE target = 'catalog.prices'
        )
        OR EXISTS (SELECT FROM changes WHERE side IS NULL)
    )
"""


@dataclass(frozen=True)
class Proof:
    """Usage before `billed_to` was proved to be billed rightly at this F, by the catalog up to `activity_number` of the
    log. `billed_frontier` None: an audit of an earlier release, or F was unknown; it proves nothing that has waited.
    """

    audit_id: int
    billed_to: int
    activity_number: int = 0
    billed_frontier: datetime | None = None


NOTHING = Proof(0, 0)
"""No audit has proved anything."""


def find_proof(database: Database, since: datetime, until: datetime) -> Proof:
    """The proof of what was received from `since` on and occurred before `until`; NOTHING without one."""
    row = database.execute(_PROOF, {"since": since, "until": until}).fetchone()
    return Proof(**row) if row else NOTHING


def unproved(database: Database, proof: Proof, accounts: Collection[str], following: date) -> set[str]:
    """Of these accounts, those of which a month before `following` changed since the audit; all without a proof.

    Changed: usage of it came, or what waited was billed at its deadline, or its users were counted again, or its
    account, plan or prices were changed for a time before the end of the month. So it is where another account changed
    with which it pools then: its share is another one.
    """
    if proof == NOTHING:
        return set(accounts)
    pooled = database.execute(POOLED_BEFORE, {"accounts": list(accounts), "end": following}).fetchall()
    every = {*accounts, *(row["member"] for row in pooled)}
    of_proof = {"billed_to": proof.billed_to, "after": proof.activity_number}
    parameters = {"accounts": sorted(every), "end": following, **of_proof}
    rows = [row for sql in (_CHANGED, _PRICED_OTHERWISE) for row in database.execute(sql, parameters).fetchall()]
    changed = {row["account"] for row in rows} | settled_since(database, proof, every, following)
    changed |= {account for account, _ in counted_again(database, proof.activity_number)}
    return changed.intersection(accounts) | {row["account"] for row in pooled if row["member"] in changed}


def settled_since(database: Database, proof: Proof, accounts: Collection[str], following: date) -> set[str]:
    """Of these accounts, those of which usage before `following` waited, and was billed at its deadline since."""
    parameters = {"accounts": sorted(accounts), "end": following, "billed_frontier": proof.billed_frontier}
    return {row["account"] for row in database.execute(_SETTLED, parameters).fetchall()}
