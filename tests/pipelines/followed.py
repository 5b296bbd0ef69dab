"""What whoever follows the topics must end up with: the rows of the database, as messages name and write them."""

from __future__ import annotations

import json
from typing import Any

import psycopg

from jobs.billing.messages import correction_message, window_message
from metering.words import Published
from tests.pipelines.folding import rows_of

Row = dict[str, Any]
NAMES = {
    Published.WINDOWS: """
        window_start, window_end, account, model, meter, currency, price_version, quantity::text,
        trim_scale(unit_price)::text AS unit_price, trim_scale(amount)::text AS amount, late_quantity::text, late_rows,
        unmetered_rows, corrected, version, updated_at
    """,
    Published.CORRECTIONS: """
        window_start, account, model, meter, currency, cause, old_quantity::text, new_quantity::text,
        trim_scale(old_amount)::text AS old_amount, trim_scale(new_amount)::text AS new_amount, decision, corrected_at,
        dimensions, usage_lsns
    """,
}
TABLES = {Published.WINDOWS: "usage_windows", Published.CORRECTIONS: "corrections"}


def truth(connection: psycopg.Connection[Any], topic: Published) -> dict[str, Row]:
    """By id: what a message of each row that there is says in `data`."""
    message = window_message if topic is Published.WINDOWS else correction_message
    rows = rows_of(connection, f"SELECT {NAMES[topic]} FROM {TABLES[topic]}")
    said = [json.loads(message(row)[1])["data"] for row in rows]
    assert len({one["id"] for one in said}) == len(said)
    return {one["id"]: one for one in said}


class Follower:
    """Applies messages as `examples/follow.py` does: each id once per version, and only forward."""

    def __init__(self) -> None:
        self.held: dict[Published, dict[str, Row]] = {topic: {} for topic in Published}
        self.done: list[tuple[Published, str, int]] = []

    def take(self, topic: Published, value: bytes) -> None:
        said = json.loads(value)["data"]
        held = self.held[topic].get(said["id"])
        if held is None or said["version"] > held["version"]:
            self.held[topic][said["id"]] = said
            self.done.append((topic, said["id"], said["version"]))
        elif said["version"] == held["version"]:
            assert said == held, "one id at one version is one row"
