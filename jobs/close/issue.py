"""One transaction: months of some accounts become invoices, of the usage that billing has at its locked position."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import psycopg

from jobs.billing_progress import Row
from jobs.close.account_months import Invoiced, all_walked, following, invoiced
from jobs.close.config import CloseConfig, UnknownCurrencyError
from jobs.close.pools import parted
from jobs.close.proof import Proof, unproved
from jobs.close.readiness import Open, open_rows, refusal, unknown_amount, unpriced
from jobs.close.store import chain_ends, hold_catalog, lock_series, store
from jobs.queries.bills import Period, read_month, read_periods
from jobs.queries.invoices import charged_lines, closed_moneys, key_of, last_lines, month_text, written_off
from jobs.queries.pools import pools_of
from metering.invoice_chain import End, Event, appended
from metering.invoices import (
    Charge,
    Header,
    Invoice,
    Line,
    Money,
    State,
    corrections,
    kind_of,
    numbered,
    own_lines,
    totals,
    write_off,
)

_POSITION = "SELECT next_position, frontier FROM positions WHERE job = 'billing' AND input = 'usage' FOR SHARE"


@dataclass(frozen=True)
class Terms:
    """How months are closed: by whom, when, and what may stay open for which reason."""

    config: CloseConfig
    month: date
    at: datetime
    made_by: str
    reason: str | None = None
    allowed: Collection[Open] = ()
    reissues: bool = False


@dataclass
class Batch:
    """What became of some accounts. `moved`: their usage changed since the audit."""

    invoices: list[Invoice] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Draft:
    """An invoice that has no number yet."""

    period: Period
    month: date
    money: Money
    lines: Sequence[Line]
    replaces: str | None


@dataclass
class _Account:
    """One account on its way through its months."""

    months: Invoiced
    pending: defaultdict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    drafts: list[_Draft] = field(default_factory=list)


def issue(
    database: psycopg.Connection[Row],
    accounts: Sequence[str],
    periods: Mapping[date, Mapping[str, Period]],
    proof: Proof,
    terms: Terms,
    *,
    keeps: bool,
) -> Batch:
    """Close the month, and earlier ones that are still open, of each account; without `keeps` nothing stays.

    Billing's position is locked: no batch of usage is folded meanwhile, and no change of the catalog commits. Accounts
    whose usage changed since `proof` are left out, unless nothing is kept. One account that is refused stops no other,
    except those that pool with it, which `accounts` has, too.
    Raises `psycopg.Error`.
    """
    batch = Batch()
    with database.transaction(force_rollback=not keeps):
        number = lock_series(database, terms.config.issuer)
        # A rebuild for which it waited has made another row, which a second look finds.
        locked = database.execute(_POSITION).fetchone() or database.execute(_POSITION).fetchone()
        assert locked is not None
        activity_number = hold_catalog(database)
        months = invoiced(database, accounts)
        batch.closed = [account for account in accounts if months[account].is_closed(terms.month)]
        rest = set(accounts) - set(batch.closed)
        # A pool may have been declared since accounts were chosen; no change of the catalog commits now.
        batch.refused |= parted(database, terms.month, rest)
        rest -= batch.refused.keys()
        if keeps:
            batch.moved = unproved(database, proof, rest, following(terms.month))
        states = {account: _Account(months[account]) for account in sorted(rest - batch.moved)}
        for month in all_walked({account: state.months for account, state in states.items()}, terms.month):
            # Another close may have issued an earlier month since these were read.
            known = periods.get(month) or read_periods(database, month, sorted(states))
            _walk(database, month, known, states, terms, batch)
        _refuse_pools(database, states, terms.month, batch)
        ends = dict(chain_ends(database, list(states)))
        for account, state in states.items():
            for draft in state.drafts:
                number += 1
                invoice = Invoice(_header(draft, number, terms, proof, locked), numbered(draft.lines))
                batch.invoices.append(invoice)
                ends[account] = _append(batch, invoice, ends.get(account, End()), terms)
        store(database, batch.invoices, batch.events, activity_number)
    return batch


def _walk(  # noqa: PLR0917  # all that a month of a batch is made of
    database: psycopg.Connection[Row],
    month: date,
    periods: Mapping[str, Period],
    states: dict[str, _Account],
    terms: Terms,
    batch: Batch,
) -> None:
    """One month of all accounts that have it: its own lines, or what came since it was closed."""
    there = [account for account, state in states.items() if month in state.months.walked(terms.month)]
    last = last_lines(database, there, month)
    closed = closed_moneys(database, there, month, last)
    charged = charged_lines(month, last, lambda place: _known_money(terms.config, place[1]), closed)
    lines: defaultdict[str, list[Row]] = defaultdict(list)
    for line in read_month(database, month, there, charged=charged).lines:
        lines[line["account"]].append(line)
    given_up = written_off(database, there, month)
    is_open = open_rows(database, there, month)
    issued_again = _issued_again(database, month, there, states) if terms.reissues and month == terms.month else ()
    for account in there:
        state = states[account]
        try:
            if (without := unknown_amount(lines[account])) is not None:
                raise ValueError(f"{month_text(month)}: {without}")
            charges = _charges(lines[account], month)
            if month in state.months.months and not _to_reissue(state, month, charges):
                issued = {currency: keys for (owner, currency), keys in last.items() if owner == account}
                before = {currency: amount for (owner, currency), amount in given_up.items() if owner == account}
                _correct(state, month, charges, issued, before, terms.config)
                continue
            if terms.reissues and month == terms.month and account not in issued_again:
                raise ValueError(f"{month_text(month)}: nothing of it is voided, so nothing can be issued again")
            problem = _problem(state, month, lines[account], is_open.get(account, {}), terms)
            if problem is None:
                state.drafts += _drafts(state, month, periods[account], charges, terms)
        except (ArithmeticError, ValueError, TypeError, LookupError) as error:
            problem = str(error)
        if problem is not None:
            batch.refused[account] = problem
            del states[account]


def _issued_again(
    database: psycopg.Connection[Row], month: date, accounts: Collection[str], states: Mapping[str, _Account]
) -> set[str]:
    """Who has a voided invoice of the month, and who pools with them: what these used later is issued with it."""
    voided = {account for account in accounts if states[account].months.voided(month)}
    pools = pools_of(database, month, accounts)
    return voided | {account for account, members in pools.items() if members & voided}


def _refuse_pools(database: psycopg.Connection[Row], states: dict[str, _Account], month: date, batch: Batch) -> None:
    """Nobody is invoiced for a share of what others that pool with them are not: of `month`, or an earlier one."""
    drafted = {month: set(states)} if batch.refused else {}
    for account, state in states.items() if batch.refused else ():
        for draft in state.drafts:
            drafted.setdefault(draft.month, set()).add(account)
    reasons: dict[str, str] = {}
    for at, accounts in sorted(drafted.items()):
        for account, members in pools_of(database, at, sorted(accounts)).items():
            if refused := sorted(members & batch.refused.keys()):
                pooled = f"it pools with {', '.join(refused)}, which cannot be closed"
                reasons.setdefault(account, f"{month_text(at)}: {pooled}")
    batch.refused |= reasons
    for account in reasons:
        del states[account]


def _known_money(config: CloseConfig, currency: str) -> Money | None:
    """None: the accounts that have the currency are refused."""
    try:
        return config.money(currency)
    except UnknownCurrencyError:
        return None


def _to_reissue(state: _Account, month: date, charges: Mapping[str, list[Charge]]) -> Mapping[str, str]:
    """The voided invoices that have anything to bill or to correct, by currency; the others are not issued again."""
    voided = state.months.voided(month)
    return {name: invoice for name, invoice in voided.items() if charges.get(name) or state.pending.get(name)}


def _problem(
    state: _Account, month: date, lines: Sequence[Row], is_open: Mapping[Open, str], terms: Terms
) -> str | None:
    voided = state.months.voided(month)
    if voided and not (terms.reissues and month == terms.month):
        names = ", ".join(voided.values())
        return f"{month_text(month)}: {names} is voided; close this month with --reissue to issue it again"
    found = dict(is_open)
    if (without := unpriced(lines)) is not None:
        found[Open.UNPRICED] = without
    return refusal(month, found, terms.allowed)


def _charges(lines: Sequence[Row], month: date) -> Mapping[str, list[Charge]]:
    """By currency. What has no currency is of an account that was unknown: it can be on no invoice."""
    found: defaultdict[str, list[Charge]] = defaultdict(list)
    for line in lines:
        if line["currency"] is None:
            continue
        charge = Charge(key_of(line, month), line["quantity"], line["amount"], line["unit_price"])
        found[line["currency"]].append(charge)
    return found


def _correct(  # noqa: PLR0917  # what a closed month of an account is compared with
    state: _Account,
    month: date,
    charges: Mapping[str, list[Charge]],
    issued: Mapping[str, Any],
    given_up: Mapping[str, Decimal],
    config: CloseConfig,
) -> None:
    """What came for a month after its close: to the month that is closed now."""
    for currency in sorted({*charges, *issued}):
        money = config.money(currency)
        pairs = corrections(charges.get(currency, ()), issued.get(currency, {}), money)
        before = {month: given_up.get(currency, Decimal())}
        state.pending[currency] += pairs + write_off(pairs, money, config.write_off_below.get(currency), before)


def _drafts(
    state: _Account, month: date, period: Period, charges: Mapping[str, list[Charge]], terms: Terms
) -> Iterator[_Draft]:
    """The invoices of a month, one for each currency; with the last month all corrections."""
    voided = state.months.voided(month)
    pending = state.pending if month == terms.month else {}
    for currency in sorted({*charges, *(name for name, lines in pending.items() if lines)}):
        if voided and currency not in voided:
            continue
        money = terms.config.money(currency)
        lines = own_lines(charges.get(currency, ()), money) + list(pending.get(currency, ()))
        yield _Draft(period, month, money, lines, voided.get(currency))


def _header(draft: _Draft, number: int, terms: Terms, proof: Proof, locked: Row) -> Header:
    total, residual = totals(draft.lines)
    return Header(
        invoice=f"{terms.config.issuer}-{number}",
        issuer=terms.config.issuer,
        number=number,
        account=draft.period.account,
        kind=kind_of(draft.lines),
        period=draft.month,
        period_start=draft.period.start,
        period_end=draft.period.end,
        timezone=draft.period.timezone,
        money=draft.money,
        lines=len(draft.lines),
        total=total,
        residual=residual,
        usage_position=locked["next_position"],
        frontier=locked["frontier"],
        audit_id=proof.audit_id,
        replaces=draft.replaces,
    )


def _append(batch: Batch, invoice: Invoice, end: End, terms: Terms) -> End:
    """Open, with what may stay open and why, and Issued."""
    for state in (State.OPEN, State.ISSUED):
        event = appended(
            end,
            invoice.header.account,
            invoice.header.invoice,
            state,
            invoice.document,
            at=terms.at,
            made_by=terms.made_by,
            reason=terms.reason if state is State.OPEN else None,
            allowed=tuple(sorted(terms.allowed)) if state is State.OPEN else (),
        )
        batch.events.append(event)
        end = End(event.sequence, event.hash)
    return end
