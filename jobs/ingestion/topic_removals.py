"""Topics of events that are read no more, where an operator has removed them (`weir topics remove`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from jobs.ingestion.event_topic_settings import PENDING, topics_in
from jobs.runtime.effective_rules import History
from jobs.runtime.errors import Refused
from jobs.runtime.postgres.session import CONNECT_TIMEOUT_SECONDS

_READ = f"""
SELECT topic, reason, removed_by, removed_at, unread, waiting, checked_at IS NOT NULL
FROM topic_removals WHERE {PENDING} ORDER BY topic
"""
_ENDED = "SELECT DISTINCT topic FROM topic_removals WHERE ended_at IS NOT NULL"
_WITHDRAW = f"UPDATE topic_removals SET withdrawn_at = clock_timestamp() WHERE {PENDING} AND topic = ANY (%s)"
_END = f"UPDATE topic_removals SET ended_at = clock_timestamp() WHERE {PENDING} AND topic <> ALL (%s)"
_CHECK = f"""
UPDATE topic_removals SET checked_at = clock_timestamp(), unread = %s, waiting = %s WHERE {PENDING} AND number = %s
"""
_WITHDRAW_ONE = f"UPDATE topic_removals SET withdrawn_at = clock_timestamp() WHERE {PENDING} AND number = %s"
_STORED = "SELECT config FROM jobs WHERE job = 'ingestion'"
_STORE = """
INSERT INTO topic_removals (topic, reason, removed_by, unread, waiting) VALUES (%s, %s, %s, %s, %s)
RETURNING number
"""


@dataclass(frozen=True)
class Removal:
    """A removal that takes effect when ingestion starts without the topic. `unread` None: nobody knows how many."""

    topic: str
    reason: str
    removed_by: str
    removed_at: datetime
    unread: int | None
    waiting: int
    is_checked: bool = True
    """Whether the topic was looked at again after the API had stopped writing to it: only then nothing is lost."""


def read_removals(connection: psycopg.Connection[Any]) -> list[Removal]:
    """Those that have not taken effect yet."""
    return [Removal(*row) for row in connection.execute(_READ).fetchall()]


def ended_topics(connection: psycopg.Connection[Any]) -> frozenset[str]:
    """Topics that ingestion was started without; Kafka may still have them."""
    return frozenset(topic for (topic,) in connection.execute(_ENDED).fetchall())


def store_removal(
    cursor: psycopg.Cursor[Any], topic: str, reason: str, by: str, *, unread: int | None, waiting: int
) -> int:
    """Let the API write no more to the topic; the removal's number. One that is pending already is replaced."""
    cursor.execute(_WITHDRAW, [[topic]])
    ((number,),) = cursor.execute(_STORE, [topic, reason, by, unread, waiting]).fetchall()
    return int(number)


def check_removal(cursor: psycopg.Cursor[Any], number: int, *, unread: int | None, waiting: int) -> bool:
    """Let the next start of ingestion go on without the topic: what the API has written to it was seen.

    False, and nothing changes: the removal is not pending, since ingestion was started with the topic or another
    removal replaced it. The API may have written to the topic meanwhile.
    """
    return cursor.execute(_CHECK, [unread, waiting, number]).rowcount == 1


def withdraw_removal(cursor: psycopg.Cursor[Any], number: int) -> None:
    """Let the next start of ingestion be refused without the topic again. Nothing if it is not pending any more."""
    cursor.execute(_WITHDRAW_ONE, [number])


def topics_listed(history: History) -> tuple[str, ...]:
    """The topics that the journal's rules list last; none where the configuration had no `events` then."""
    listed = history[-1].rules if history else {}
    return topics_in(listed) if listed.get("events") else ()


def removed_since(listed: Iterable[str], topics: Sequence[str], removals: Iterable[Removal]) -> list[Removal]:
    """The removals of topics that were read until now (`listed`, as far as it is known) and are not among `topics`.

    Raises Refused for one that nobody has removed: what it has unread would be on no bill, and nobody would know.
    """
    pending = {removal.topic: removal for removal in removals if removal.topic not in topics}
    if missing := [name for name in listed if name not in topics and name not in pending]:
        raise Refused(
            f"the configuration no longer lists the topic {missing[0]}, which ingestion reads: list it in `events` "
            "again. To end it, start ingestion with the old configuration, run "
            f"`weir topics remove {missing[0]} --reason TEXT`, which checks that nothing is lost, and then start it "
            "with the new one"
        )
    if unfinished := [name for name in listed if name in pending and not pending[name].is_checked]:
        raise Refused(
            f"the removal of the topic {unfinished[0]} was ended before it had looked whether the API has written more "
            f"to it: run `weir topics remove {unfinished[0]} --reason TEXT` again. (If records of it are unread, start "
            "ingestion with the old configuration first.)"
        )
    return list(pending.values())


def refuse_missing_topics(
    history: History, topics: Sequence[str], postgres_url: str, *, is_read: Callable[[str], bool]
) -> None:
    """What `removed_since` raises, before the configuration is stored: the API writes to the topics of that one.

    Rules that list no topics are of a `topic` alone. It is that of the stored configuration, if the journal `is_read`
    from it: nothing can be missing of one that was never read.
    """
    listed = topics_listed(history)
    if listed and set(listed) <= set(topics):
        return
    with psycopg.connect(postgres_url, connect_timeout=CONNECT_TIMEOUT_SECONDS) as connection:
        stored = None if listed else connection.execute(_STORED).fetchone()
        known = listed or [name for name in (topics_in(stored[0]) if stored else ()) if is_read(name)]
        removed_since(known, topics, read_removals(connection))


def removals_entry(removed: Collection[Removal]) -> Mapping[str, Any]:
    """What the journal's `rules` say of topics that end here. Nothing without one."""
    found = [
        {
            "topic": removal.topic,
            "reason": removal.reason,
            "removed_by": removal.removed_by,
            "removed_at": removal.removed_at.isoformat(),
            "unread": removal.unread,
            "waiting": removal.waiting,
        }
        for removal in removed
    ]
    return {"removed_topics": found} if found else {}


def settle_removals(cursor: psycopg.Cursor[Any], topics: Sequence[str]) -> None:
    """Note which have taken effect, now that the journal says so; those of `topics`, which are read, were withdrawn."""
    cursor.execute(_WITHDRAW, [list(topics)])
    cursor.execute(_END, [list(topics)])
