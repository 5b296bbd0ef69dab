"""Meters of a period: which users an outcome adds to a day or month, at which price, and how many each period has."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

from metering.pricing import Version
from metering.vocabulary import Outcome
from tests.simulation.made import Found, Row
from tests.simulation.oracle_of_aliases import price_in_force
from tests.specifications.pricing import account_as_of

BILLED = (Outcome.MATCHED, Outcome.ABANDONED)
Member = tuple[str, str, str, str | None, int | None, Decimal | None]
"""Meter, user, first day, currency, price version and unit price."""


def members_of(
    usage: Row,
    meters: Mapping[str, Mapping[str, Any]],
    accounts: Sequence[Version[Any]],
    prices: Mapping[Any, Sequence[Version[Any]]],
    decided: int,
) -> Iterator[Member]:
    """The members of a row by the meters of its driver, at the price of the period's start, as known when decided."""
    for name in sorted(meters):
        if meters[name].get("aggregation") != "unique" or usage["outcome"] not in BILLED or usage["user_id"] is None:
            continue
        day = usage["event_time"].date()
        first = day if meters[name]["period"] == "day" else day.replace(day=1)
        start = datetime.combine(first, time(), UTC)
        contract = account_as_of(accounts, start, decided)
        plan, currency = (None, None) if contract is None or contract.value is None else contract.value
        price = price_in_force(prices, (plan, usage["model"], name, currency), start, decided)
        version, unit_price = (None, None) if price is None else (price.lsn, price.value)
        yield name, usage["user_id"], f"{first}", currency, version, unit_price


def stored_members(usage: Row) -> list[Member]:
    """The members in a row."""
    return [
        (
            *(member[name] for name in ("meter", "member", "first_day", "currency", "price_version")),
            None if member["unit_price"] is None else Decimal(member["unit_price"]),
        )
        for member in json.loads(usage["members"] or "[]")
    ]


def sets(found: Found) -> Iterator[str]:
    """I6: on its first day each period has the number of its users, for each model and price version."""
    users: defaultdict[Any, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in found.outcomes:
        for meter, user, first, currency, version, _ in stored_members(row):
            users[row["account"], first, meter, row["model"], currency, version][user] += row["sign"]
    wanted = {key: Decimal(sum(count > 0 for count in counts.values())) for key, counts in users.items()}
    periods = {(account, f"{day}", *rest): quantity for (account, day, *rest), quantity in found.sets.items()}
    if periods != wanted:
        yield f"I6: periods have {periods} instead of {wanted}"
