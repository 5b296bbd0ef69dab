"""A document that can be written wrongly: its members stay in order, may stand twice, and may be no JSON at all."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


class Raw(str):
    """Written as it is, instead of a value."""

    __slots__ = ()


class Members(list[list[Any]]):
    """An object: pairs of a key and a value."""

    def get(self, key: str) -> Any:
        """The first value of the key; None where there is none."""
        return next((value for name, value in self if name == key), None)


@dataclass
class Draft:
    """A Kafka record in the making. Mutations change `tree` first; then it is written, and they change the bytes."""

    tree: Any
    key: bytes | None
    value: bytes | None = None
    partition: int = 0
    is_broker_stamp: bool = True
    stamp_us: int | None = None
    """Microseconds since 1970 instead of those of its turn."""
    spacing: tuple[str, str] = (",", ":")
    is_ascii: bool = True

    def write(self) -> None:
        """Make `value` of `tree`."""
        self.value = written(self.tree, self.spacing, self.is_ascii).encode("utf-8", "surrogatepass")


Mutation = Callable[[random.Random, Draft], None]


def tree_of(value: Any) -> Any:
    """Python's JSON values as a tree."""
    if isinstance(value, dict):
        return Members([key, tree_of(member)] for key, member in value.items())
    return [tree_of(element) for element in value] if isinstance(value, list) else value


def written(value: Any, spacing: tuple[str, str], is_ascii: bool) -> str:
    """The tree's text."""
    comma, colon = spacing
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Members):
        members = (written(k, spacing, is_ascii) + colon + written(v, spacing, is_ascii) for k, v in value)
        return "{" + comma.join(members) + "}"
    if isinstance(value, list):
        return "[" + comma.join(written(element, spacing, is_ascii) for element in value) + "]"
    return json.dumps(value, ensure_ascii=is_ascii)


def members_of(tree: Any) -> Iterator[tuple[Members, int]]:
    """Every place in the tree where a member stands: its object, and which of it."""
    if isinstance(tree, Members):
        for at, (_, value) in enumerate(tree):
            yield tree, at
            yield from members_of(value)
    elif isinstance(tree, list):
        for element in tree:
            yield from members_of(element)
