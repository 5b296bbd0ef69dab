"""Sets of members: of the usage that puts or takes back a user in a day or month, how many different ones stand."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from tests.simulation.made import Found


def sets(found: Found) -> Iterator[str]:
    """I6: on the first day of each period stands how many users it has, of each model and price version."""
    users: defaultdict[Any, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in found.outcomes:
        for one in json.loads(row["members"] or "[]"):
            day = row["event_time"].date()
            first = day if one["period"] == "day" else day.replace(day=1)
            key = (row["account"], first, one["meter"], row["model"], one["currency"], one["price_version"])
            if one["member"] != row["user_id"] or one["first_day"] != f"{first}":
                yield f"I6: usage {row['lsn']} puts {one}, of user {row['user_id']} on {day}"
            users[key][row["user_id"]] += row["sign"]
    wanted = {key: Decimal(sum(count > 0 for count in counts.values())) for key, counts in users.items()}
    if found.sets != wanted:
        yield f"I6: sets come to {found.sets} instead of {wanted}"
