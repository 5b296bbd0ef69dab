"""The members of a JSON object as they were written. A key that appears twice has two values."""

from __future__ import annotations

from collections.abc import Sequence


def member_twice(members: Sequence[tuple[str, object]]) -> str | None:
    """The name that is the first to stand for the second time; None where each stands once.

    In one pass: a record of a mebibyte has 100,000 members, and to look for each among the others takes minutes.
    """
    if len(dict(members)) == len(members):
        return None
    seen: set[str] = set()
    for name, _ in members:
        if name in seen:
            return name
        seen.add(name)
    return None
