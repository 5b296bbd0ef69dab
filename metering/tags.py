"""The tags of an account: a few short texts by name, and the canonical text for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from metering.limits import MAX_TAG_BYTES, MAX_TAG_NAME_BYTES, MAX_TAGS


def checked_tags(value: Any) -> dict[str, str]:
    """The tags in the form that the database stores. Raises ValueError with what they must be."""
    if not isinstance(value, Mapping):
        raise ValueError("must be an object of texts by name")
    if len(value) > MAX_TAGS:
        raise ValueError(f"must be at most {MAX_TAGS}")
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError(f"{name!r} must be a text")
        if not 1 <= _bytes(name) <= MAX_TAG_NAME_BYTES:
            raise ValueError(f"{name!r} must be a name of 1 to {MAX_TAG_NAME_BYTES} bytes")
        if _bytes(text) > MAX_TAG_BYTES:
            raise ValueError(f"{name!r} must be a text of at most {MAX_TAG_BYTES} bytes")
        if "\0" in name or "\0" in text:
            raise ValueError(f"{name!r} must not hold U+0000")
    return dict(value)


def tags_text(tags: Mapping[str, str]) -> str | None:
    """JSON of these tags, the same for the same ones; None for none."""
    if not tags:
        return None
    return json.dumps(dict(tags), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _bytes(text: str) -> int:
    """In UTF-8. Raises ValueError for half a surrogate pair."""
    return len(text.encode())
