"""The assumptions of a replay: other prices, accounts or rules; everything else is as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import polars as pl
import pyarrow as pa

from jobs.audit.recompute.expected import Pinned
from jobs.billing.config import BillingConfig
from jobs.joins.config import JoinsConfig
from jobs.runtime.effective_rules import EffectiveRules, History
from jobs.streams import ACCOUNTS, PRICES

PRICE = ("plan", "model", "meter", "currency", "effective_from")


@dataclass(frozen=True)
class Assumptions:
    """`accounts` and `prices` (streams.ACCOUNTS, PRICES; their `lsn` is left out of account) and configurations.

    A price takes the place of all versions of its key and `effective_from`, an account that of all versions of it.
    """

    accounts: pa.Table = field(default_factory=ACCOUNTS.empty_table)
    prices: pa.Table = field(default_factory=PRICES.empty_table)
    joins: JoinsConfig | None = None
    billing: BillingConfig | None = None

    def pinned(self, live: Pinned) -> Pinned:
        """What outcomes go by: as they were decided, but for what is assumed."""
        known = replace(
            live,
            accounts=_in_place(live.accounts.cast(ACCOUNTS), self.accounts, ["account"]),
            prices=_in_place(live.prices.cast(PRICES), self.prices, list(PRICE)),
            since=None,
            until=None,
        )
        if self.joins is None:
            return known
        # What it leaves open is as it is live.
        joins = self.joins.settled(live.history, is_new=False)
        rules = EffectiveRules(1, joins.deciding)
        return replace(known, history=(rules,), metered=(), known_from=1, rejoin_within=joins.rejoin_within)

    def rules(self, live: History) -> History:
        """What bills go by."""
        return live if self.billing is None else (EffectiveRules(1, self.billing.deciding),)


def _in_place(versions: pa.Table, given: pa.Table, key: Sequence[str]) -> pa.Table:
    """The versions with those that are given, which everybody has known: their lsns are below all others."""
    if not len(given):
        return versions
    assumed = pl.DataFrame(given).with_columns(lsn=pl.int_range(-len(given), 0, dtype=pl.Int64))
    others = pl.DataFrame(versions).join(assumed, on=list(key), how="anti")
    return pl.concat([assumed.select(others.columns), others]).to_arrow().cast(versions.schema)
