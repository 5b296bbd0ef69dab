"""One close: who can be closed, the audit where there is no proof, and then the invoices, some accounts at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date
from decimal import Decimal
from functools import cached_property
from typing import Any

import psycopg
from psycopg.rows import dict_row

from jobs.audit.recompute.basis import Scope
from jobs.billing_progress import billing_progress
from jobs.close.account_months import following, invoiced
from jobs.close.earlier_months import earlier_months
from jobs.close.issue import Batch, Terms, issue
from jobs.close.pools import parted
from jobs.close.proof import EARLIER, Proof, find_proof, unproved
from jobs.close.readiness import not_over
from jobs.close.series import InvoiceSeries
from jobs.queries.bills import Period, read_periods
from jobs.queries.invoices import month_text
from jobs.queries.plan_fees import read_plan_months
from jobs.queries.pools import pools_of
from jobs.runtime.postgres.session import Session
from metering.invoices import Invoice

COLUMNS = ("account", "period", "currency", "invoice", "total", "outcome", "reason")
ISSUED, WOULD_BE_ISSUED, CLOSED, REFUSED = "issued", "would be issued", "closed already", "refused"
NO_ACCOUNT = "no account"
"""Outcome of usage whose account is in no catalog. It is listed, and refuses nothing unless the account is named."""
NOT_INVOICED = "not invoiced"
"""Outcome of an earlier month of an account, of which others have invoices. It is listed, and refuses nothing."""
ACCOUNT_BATCH = 500
"""Billing waits while these are closed."""
MAX_AUDITS = 3
"""Usage of a month that is long over comes rarely; where it keeps coming the next close tries again."""
_MOVES = "usage of it came after the audit, {} times; close it again later"
_REMOVED = (
    "`weir retain` has removed some of what belongs to it before an audit proved it: to close it by what is left, run "
    "`weir audit` without a period, and close it again"
)
_WITH_USAGE = "SELECT DISTINCT account FROM usage_months WHERE month = %s"
_UNKNOWN = (
    "the catalog has no such account, so its usage has no price and is on no invoice: if it is a customer, add it "
    "(`weir catalog apply`), let an audit price its usage (`weir audit`), and close the month again"
)
_LEFT = (
    "what it has in this month is on no invoice, as it came, or was refused, when others were closed: "
    "`weir close {} --account {}`."
)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Close:
    """One close of a month, of some accounts or (empty) of all. `audit` audits a period; whether all of it holds."""

    postgres_url: str
    terms: Terms
    audit: Callable[[Scope], bool]
    accounts: Sequence[str] = ()
    is_dry_run: bool = False
    tell: Callable[[str], None] = field(default=lambda _: None)
    account_batch: int = ACCOUNT_BATCH
    series: InvoiceSeries | None = None
    """Where the last number is written down besides the database; None: nowhere."""

    def run(self) -> Iterator[Row]:
        """A row (COLUMNS) for each invoice, and for each account that is refused, as they are made. First, one for each
        account with an earlier month that is on no invoice while others have one.

        An account that is closed already has a row, too, where it is named. Raises what `audit` raises, and
        `psycopg.Error` where the database does not answer: what is issued by then stays, and the next close goes on.
        Raises Refused where the database does not know all invoices that were issued.
        """
        options = "-c synchronous_commit=on -c idle_in_transaction_session_timeout=60s"
        with Session.to(
            self.postgres_url, "weir close", options=options, is_patient=True, row_factory=dict_row
        ) as database:
            if self.series is not None:
                self.series.refuse_older(database, keeps=not self.is_dry_run)
            ready, rows = self._ready(database)
            yield from rows
            yield from self._earlier(database)
            for audits in range(MAX_AUDITS + 1):
                if not ready:
                    return
                proof = find_proof(database, *self._span(database, ready))
                changed = () if self.is_dry_run else self._unproved(database, proof, ready)
                lacking = [account for account in ready if account in changed]
                proved = [([account for account in ready if account not in changed], proof)]
                if lacking:
                    if audits == MAX_AUDITS:
                        break
                    self.tell(f"the audit of {month_text(self.terms.month)}")
                    since, until = self._span(database, lacking)
                    known = find_proof(database, since, until)
                    if not self.audit(Scope(since, until)):
                        reason = "the audit found what it cannot explain: see `weir audit`"
                        yield from (self._refused(account, reason) for account in ready)
                        return
                    proof = find_proof(database, since, until)
                    if proof == known and find_proof(database, until, until).audit_id > known.audit_id:
                        yield from (self._refused(account, _REMOVED) for account in lacking)
                    else:
                        proved.append((lacking, proof))
                    # The audit took a while, and the catalog may be another one.
                    self._known_periods.clear()
                ready = []
                for accounts, proof in proved:
                    ready += yield from self._issue(database, accounts, proof)
            yield from (self._refused(account, _MOVES.format(MAX_AUDITS)) for account in ready)

    def _ready(self, database: psycopg.Connection[Any]) -> tuple[list[str], list[Row]]:
        """The accounts whose month is over and not closed yet; and rows of the others that have something to say."""
        month = self.terms.month
        known = self._periods(database, month)
        used = {row["account"] for row in database.execute(_WITH_USAGE, [month]).fetchall()}
        used |= read_plan_months(database, month, lambda: known).every.keys()
        named = list(dict.fromkeys(self.accounts)) or sorted(known.keys() | used)
        closed_until = billing_progress(database)[1].every
        months = invoiced(database, named)
        ready: list[str] = []
        rows: list[Row] = []
        for account in named:
            if account not in known:
                outcome = REFUSED if self.accounts else NO_ACCOUNT
                rows.append({**self._row(account, outcome), "reason": _UNKNOWN})
            elif months[account].is_closed(month):
                rows += [self._row(account, CLOSED)] if self.accounts else []
            elif (reason := not_over(known[account], closed_until)) is None:
                ready.append(account)
            elif account in used or self.accounts:
                rows.append(self._refused(account, reason))
        return self._whole_pools(database, ready, rows)

    def _whole_pools(
        self, database: psycopg.Connection[Any], ready: list[str], rows: list[Row]
    ) -> tuple[list[str], list[Row]]:
        """Only those of `ready` that are not parted from others they pool with; and rows of the rest."""
        reasons = parted(database, self.terms.month, ready)
        rows += [self._refused(account, reason) for account, reason in reasons.items()]
        return [account for account in ready if account not in reasons], rows

    def _unproved(self, database: psycopg.Connection[Any], proof: Proof, ready: Sequence[str]) -> set[str]:
        """Those that must be audited first, and who pools with them: a pool is closed by one proof."""
        changed = unproved(database, proof, ready, following(self.terms.month))
        pools = pools_of(database, self.terms.month, ready)
        return changed | {account for account, members in pools.items() if members & changed}

    def _earlier(self, database: psycopg.Connection[Any]) -> Iterator[Row]:
        """A row for each account with earlier months that no close would issue."""
        named = list(dict.fromkeys(self.accounts)) or sorted(self._periods(database, self.terms.month))
        found = earlier_months(database, named, self.terms.month)
        pools = {first: pools_of(database, first, found) for first in {months[0] for months in found.values()}}
        for account, months in found.items():
            first = month_text(months[0])
            more = "" if len(months) == 1 else f" So are {len(months) - 1} more months."
            # They can be closed together alone.
            members = pools[months[0]].get(account, frozenset()) | {account}
            together = " --account ".join(member for member in sorted(members) if months[0] in found.get(member, ()))
            reason = f"{_LEFT.format(first, together)}{more}"
            yield {**self._row(account, NOT_INVOICED), "period": first, "reason": reason}

    @cached_property
    def _known_periods(self) -> dict[date, dict[str, Period]]:
        return {}

    def _periods(self, database: psycopg.Connection[Any], month: date) -> dict[str, Period]:
        if month not in self._known_periods:
            self._known_periods[month] = read_periods(database, month)
        return self._known_periods[month]

    def _span(self, database: psycopg.Connection[Any], accounts: Sequence[str]) -> tuple[Any, Any]:
        """What the audit must cover: the earliest start of a month to close, and the latest end."""
        months = invoiced(database, accounts)
        starts, ends = [], []
        for account in accounts:
            walked = list(months[account].walked(self.terms.month))
            first = next((month for month in walked if not months[account].is_closed(month)), walked[-1])
            starts.append(self._periods(database, first)[account].start)
            ends.append(self._periods(database, self.terms.month)[account].end)
        return min(starts).astimezone(UTC) - EARLIER, max(ends).astimezone(UTC)

    def _issue(
        self, database: psycopg.Connection[Any], ready: Sequence[str], proof: Proof
    ) -> Generator[Row, None, list[str]]:
        """Rows of what is closed now; returns who must be audited again."""
        moved: list[str] = []
        done = 0
        for pools in self._batched(database, ready):
            for batch in self._batches(database, pools, proof):
                moved += sorted(batch.moved)
                if self.series is not None and batch.invoices and not self.is_dry_run:
                    self.series.note(max(invoice.header.number for invoice in batch.invoices))
                yield from self._rows(batch)
            done += sum(map(len, pools))
            self.tell(f"{done:,} of {len(ready):,} accounts")
        return moved

    def _batched(self, database: psycopg.Connection[Any], ready: Sequence[str]) -> Iterator[list[list[str]]]:
        """Accounts that are closed in one transaction: as one list those that pool together, which are never parted."""
        pools = pools_of(database, self.terms.month, ready)
        together: dict[frozenset[str], list[str]] = {}
        for account in ready:
            together.setdefault(pools.get(account, frozenset({account})), []).append(account)
        batch: list[list[str]] = []
        for pool in together.values():
            if batch and sum(map(len, batch)) + len(pool) > self.account_batch:
                yield batch
                batch = []
            batch.append(pool)
        if batch:
            yield batch

    def _batches(self, database: psycopg.Connection[Any], pools: Sequence[list[str]], proof: Proof) -> Iterator[Batch]:
        """All at once; one pool by one where the database refuses some of it, so that one stops no other."""
        accounts = [account for pool in pools for account in pool]
        periods = {
            month: self._periods(database, month)
            for found in invoiced(database, accounts).values()
            for month in found.walked(self.terms.month)
        }
        try:
            yield issue(database, accounts, periods, proof, self.terms, keeps=not self.is_dry_run)
        except (psycopg.errors.DataError, psycopg.errors.IntegrityError, psycopg.errors.RaiseException) as error:
            if len(pools) == 1:
                yield Batch(refused=dict.fromkeys(accounts, str(error).splitlines()[0]))
                return
            for pool in pools:
                yield from self._batches(database, [pool], proof)

    def _rows(self, batch: Batch) -> Iterator[Row]:
        for invoice in batch.invoices:
            yield self._issued(invoice)
        for account, reason in sorted(batch.refused.items()):
            yield self._refused(account, reason)
        if self.accounts:
            for account in batch.closed:
                yield self._row(account, CLOSED)

    def _issued(self, invoice: Invoice) -> Row:
        header = invoice.header
        outcome = WOULD_BE_ISSUED if self.is_dry_run else ISSUED
        return {
            **self._row(header.account, outcome),
            "period": month_text(header.period),
            "currency": header.money.currency,
            "invoice": None if self.is_dry_run else header.invoice,
            "total": header.total,
        }

    def _refused(self, account: str, reason: str) -> Row:
        return {**self._row(account, REFUSED), "reason": reason}

    def _row(self, account: str, outcome: str) -> Row:
        nothing: dict[str, Decimal | str | None] = dict.fromkeys(COLUMNS)
        return {**nothing, "account": account, "period": month_text(self.terms.month), "outcome": outcome}
