"""Which columns a condition of a watch can name, by the contracts."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.settings.dimensions import ACCOUNT_COLUMNS
from jobs.settings.view_columns import OF_OUTCOMES, OF_REQUESTS, REPORTING, TEXTS
from metering.contracts.model import NUMBERS, Contract, Kind
from metering.price_attributes import ACCOUNT


def watch_columns(contracts: Mapping[str, Contract]) -> dict[str, Kind]:
    """Columns of outcomes and their kinds: texts and booleans of requests and completions, numbers of completions, and
    columns of the account. Tags of accounts are columns beside them, by any name.
    """
    found: dict[str, Kind] = {}
    for contract in contracts.values():
        for field in contract.fields:
            is_text = contract.family in OF_REQUESTS and field.kind in TEXTS
            if is_text or (contract.family in REPORTING and field.kind in NUMBERS):
                found[field.column] = field.kind
    of_accounts = dict.fromkeys((ACCOUNT + name for name in ACCOUNT_COLUMNS), Kind.TEXT)
    return {**found, **dict.fromkeys(OF_OUTCOMES, Kind.TEXT), **of_accounts}
