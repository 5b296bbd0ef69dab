"""What whoever follows must be told: nobody takes anything out of the outbox here, so each change must stand in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from metering.vocabulary import BILLED
from metering.windows import tumbling
from tests.simulation.made import Found


def outbox(found: Found) -> Iterator[str]:
    """Each usage row that is in a window: noted with a version behind its lsn, which the window has reached.

    And no version depends on how often the window was folded: it is the position, and one for each straggler in it.
    (A rebuild begins all above what anybody was told.)
    """
    noted: defaultdict[Any, list[int]] = defaultdict(list)
    for row in found.unsent:
        noted[row["window_start"], row["account"]].append(row["version"])
    names = ("window_start", "account", "model", "meter", "currency", "price_version")
    versions = {tuple(row[name] for name in names): row["version"] for row in found.windows}
    billed = Counter(tuple(row[name] for name in names) for row in found.stragglers if row["decision"] in BILLED)
    for row in found.windows:
        key = tuple(row[name] for name in names)
        if row["version"] != row["next_position"] + billed[key] and not found.is_rebuilt:
            yield f"outbox: window {key}, changed at {row['next_position']}, has version {row['version']}"
    unbilled = [row for row in found.stragglers if row["decision"] not in BILLED]
    dropped = {(row["usage_lsn"], row["meter"]) for row in unbilled}
    for usage in found.usage:
        lsn, account, start = usage["lsn"], usage["account"], tumbling(usage["event_time"]).start
        for entry in usage["meters"]:
            if not entry["quantity"] or (lsn, entry["meter"]) in dropped:
                continue
            key = (start, account, usage["model"], entry["meter"], usage["currency"], entry["price_version"])
            told = min((version for version in noted[start, account] if version > lsn), default=None)
            if told is None or versions.get(key, 0) < told:
                yield f"outbox: usage {lsn} is in window {key}, version {versions.get(key)}, but noted with {told}"
