"""What usage can be grouped by: columns of all usage, and configured dimensions."""

from __future__ import annotations

from enum import StrEnum

from jobs.queries.reading import Database


class Key(StrEnum):
    """What all usage can be grouped by. Currency always is: two currencies are never summed."""

    ACCOUNT = "account"
    MODEL = "model"
    METER = "meter"


_CONFIGURED = "SELECT dimension AS name FROM declared_dimensions"
_UNKNOWN = """
SELECT name FROM unnest(%s::text[]) AS given (name)
WHERE name NOT IN (SELECT dimension FROM declared_dimensions)
  AND NOT EXISTS (SELECT FROM usage_day_dimensions WHERE dimensions ? name)
"""


def words_of(text: str) -> tuple[str, ...]:
    """The words of a comma-separated list, each once."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def keys_of(words: tuple[str, ...]) -> tuple[Key, ...]:
    """Those that all usage has."""
    return tuple(Key(word) for word in words if word in tuple(Key))


def dimensions_of(words: tuple[str, ...]) -> tuple[str, ...]:
    """The others: they can only be dimensions."""
    return tuple(word for word in words if word not in tuple(Key))


def unknown_dimensions(database: Database, dimensions: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Keys that are neither configured now nor in any day; and all valid ones."""
    if not dimensions:
        return [], list(Key)
    unknown = {row["name"] for row in database.execute(_UNKNOWN, [list(dimensions)]).fetchall()}
    configured = [row["name"] for row in database.execute(_CONFIGURED).fetchall()]
    return [name for name in dimensions if name in unknown], [*Key, *configured]
