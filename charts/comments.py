"""What values.yaml says of each value: the comment above its key, and its default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z0-9]+):")


@dataclass(frozen=True)
class Value:
    """One value with a comment of its own. `path` is from the root of values.yaml."""

    path: tuple[str, ...]
    description: str
    default: Any
    is_section: bool
    """It holds other documented values."""


def documented_values(text: str) -> list[Value]:
    """Every key of values.yaml with a comment directly above it, in the file's order."""
    everything = yaml.safe_load(text)
    commented = list(_commented_keys(text))
    paths = [path for path, _ in commented]
    return [
        Value(path, comment, _at(everything, path), any(p[: len(path)] == path and p != path for p in paths))
        for path, comment in commented
    ]


def undocumented(text: str) -> list[str]:
    """Values without a comment: neither they nor what holds them has one."""
    known = {value.path for value in documented_values(text) if not value.is_section}
    return [".".join(leaf) for leaf in leaves(yaml.safe_load(text)) if not any(leaf[: len(k)] == k for k in known)]


def _commented_keys(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    open_keys: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip().removeprefix("#").strip())
            continue
        if match := _KEY.match(line):
            indent = len(match["indent"])
            open_keys = [key for key in open_keys if key[0] < indent] + [(indent, match["key"])]
            if comment:
                yield tuple(key for _, key in open_keys), " ".join(comment)
        comment = []


def _at(everything: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        everything = everything[step]
    return everything


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all that holds nothing else: texts, numbers, lists, and mappings that are empty."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path
