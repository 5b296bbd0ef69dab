"""Meters of a period: the usage that adds or removes a user in a day or month → how many different users it has."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from tests.simulation.made import Found


def sets(found: Found) -> Iterator[str]:
    """I6: on its first day each period has the number of its users, for each model and price version."""
    users: defaultdict[Any, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in found.outcomes:
        for member in json.loads(row["members"] or "[]"):
            day = row["event_time"].date()
            first = day if member["period"] == "day" else day.replace(day=1)
            key = (row["account"], first, member["meter"], row["model"], member["currency"], member["price_version"])
            if member["member"] != row["user_id"] or member["first_day"] != f"{first}":
                yield f"I6: usage {row['lsn']} adds {member}, of user {row['user_id']} on {day}"
            users[key][row["user_id"]] += row["sign"]
    wanted = {key: Decimal(sum(count > 0 for count in counts.values())) for key, counts in users.items()}
    if found.sets != wanted:
        yield f"I6: periods have {found.sets} instead of {wanted}"
