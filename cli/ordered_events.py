"""`events.ordered` in `weir status`: a sentence while it is behind."""

from __future__ import annotations

from metering.reports import ORDERED_BEHIND_SECONDS


def behind_sentence(postgres_url: str) -> list[str]:
    """How far `events.ordered` is behind, if that is far; nothing where it is not wanted. Raises `psycopg.Error`."""
    import psycopg

    from jobs.billing.ordered.state import behind_seconds
    from metering.vocabulary import ORDERED_EVENTS

    with psycopg.connect(postgres_url, connect_timeout=5, autocommit=True) as database:
        seconds = behind_seconds(database)
    if seconds is None or seconds <= ORDERED_BEHIND_SECONDS:
        return []
    return [f"The topic {ORDERED_EVENTS} is {seconds:.0f} s behind: the log of billing says what it waits for."]
