"""What `weir topics list` shows of each topic of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.output import Row
    from deployment.stack import Deployment

COLUMNS = ("topic", "state", "since", "types", "unread", "frontier", "behind_seconds", "retention_hours", "positions")


def topic_rows(stack: Deployment) -> list[Row]:
    """A row with the keys COLUMNS for each topic. Raises CannotRun when a server does not answer."""
    return list(_rows(stack))


def _rows(stack: Deployment) -> Iterator[Row]:
    from cli.reading import read_only
    from cli.redrive.offline import ingestion_of
    from cli.topic_removal import left_out
    from deployment.positions import Positions
    from deployment.topic_positions import existing, topic_position, unread_records
    from jobs.runtime.clock import MachineClock

    config = ingestion_of(stack.postgres_url)
    types = {event_topic.topic: list(event_topic.types) for event_topic in config.events}
    states = dict.fromkeys(config.topics, "read")
    states |= dict.fromkeys(left_out(stack.tables, config.topics), "left out, but not removed")
    with read_only(stack.postgres_url) as database:
        removals = database.execute(
            "SELECT topic, removed_at, checked_at, ended_at FROM topic_removals WHERE withdrawn_at IS NULL "
            "ORDER BY number"
        ).fetchall()
    since = {}
    for removal in removals:
        since[removal["topic"]] = removal["removed_at"]
        if removal["ended_at"] is None:
            is_checked = removal["checked_at"] is not None
            states[removal["topic"]] = "removed at the next start" if is_checked else "removal not finished"
        else:
            states.setdefault(removal["topic"], "removed")
    now = MachineClock().now()
    found, positions = existing(stack.kafka_bootstrap, states), Positions(stack.tables, stack.postgres_url)
    for name, state in states.items():
        row: dict[str, object] = dict.fromkeys(COLUMNS)
        row |= {"topic": name, "state": state if name in found else f"{state}; not in Kafka"}
        row["since"] = None if state == "read" else since.get(name)
        row["types"] = ", ".join(types.get(name, [])) or None
        if name in found:
            at = topic_position(stack.kafka_bootstrap, found[name], positions)
            # Of a topic that is not read any more the last heartbeats are unread for good: they are no loss.
            unread = at.unread if name in config.topics else unread_records(stack.kafka_bootstrap, found[name], at)
            row |= {"unread": unread, "frontier": at.frontier}
            if at.frontier is not None and unread:
                row["behind_seconds"] = round(max(0.0, (now - at.frontier).total_seconds()), 1)
            if at.retention is not None:
                row["retention_hours"] = round(at.retention.total_seconds() / 3600, 1)
            row["positions"] = {str(partition): offset for partition, offset in at.positions.items()}
        yield row  # type: ignore[misc]
