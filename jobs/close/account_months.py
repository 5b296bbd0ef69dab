"""Which months of an account are closed, and which follow: an account's months are closed in order.

They begin with its first invoice: what was billed before is on no invoice of Weir. A month without anything to bill has
no invoice; should usage of it come, the next close issues it first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

from jobs.billing_progress import Database

_INVOICED = """
    SELECT invoices.account, period, currency, invoices.invoice, voided.invoice IS NOT NULL AS is_voided
    FROM invoices JOIN invoice_events AS issued ON issued.invoice = invoices.invoice AND issued.state = 'Issued'
    LEFT JOIN invoice_events AS voided ON voided.invoice = invoices.invoice AND voided.state = 'Voided'
    WHERE invoices.account = ANY (%s) ORDER BY invoices.account, issued.sequence
"""


@dataclass(frozen=True)
class Invoiced:
    """The months of one account that have invoices: the last one of each currency, and whether it is voided."""

    months: dict[date, dict[str, tuple[str, bool]]] = field(default_factory=dict)

    def is_closed(self, month: date) -> bool:
        """Whether it has an invoice, and none that waits to be issued again."""
        return month in self.months and not self.voided(month)

    def voided(self, month: date) -> Mapping[str, str]:
        """The invoices of a month, by currency, that are voided and not issued again."""
        found = self.months.get(month, {})
        return {currency: invoice for currency, (invoice, is_voided) in found.items() if is_voided}

    def walked(self, month: date) -> Iterator[date]:
        """From the first month with an invoice to `month`; that alone where there is none."""
        at = min([*self.months, month])
        while at < month:
            yield at
            at = following(at)
        yield month


def invoiced(database: Database, accounts: Collection[str]) -> Mapping[str, Invoiced]:
    """Of each of the accounts."""
    found = {account: Invoiced() for account in accounts}
    for row in database.execute(_INVOICED, [list(accounts)]).fetchall():
        by_currency = found[row["account"]].months.setdefault(row["period"], {})
        by_currency[row["currency"]] = (row["invoice"], row["is_voided"])
    return found


def following(month: date) -> date:
    """The month after it."""
    return (month + timedelta(days=31)).replace(day=1)


def all_walked(months: Mapping[str, Invoiced], month: date) -> Sequence[date]:
    """All months that any of the accounts has to walk, in order."""
    return sorted({walked for found in months.values() for walked in found.walked(month)})
