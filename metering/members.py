"""The members of a JSON object as they were written. A key that appears twice has two values."""

from __future__ import annotations

from collections.abc import Sequence


def member_twice(members: Sequence[tuple[str, object]]) -> str | None:
    """The first name that appears a second time; None where each appears once.

    In one pass: a record of a mebibyte has 100,000 members, and comparing each with all others takes minutes.
    """
    if len(dict(members)) == len(members):
        return None
    seen: set[str] = set()
    for name, _ in members:
        if name in seen:
            return name
        seen.add(name)
    return None
