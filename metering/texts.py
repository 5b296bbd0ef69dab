"""Any text → one that UTF-8, Arrow and Postgres can hold."""

from __future__ import annotations

import re

_UNENCODABLE = re.compile("[\0\ud800-\udfff]")


def encodable(text: str, max_characters: int | None = None) -> str:
    r"""The text, with U+0000 and each half of a surrogate pair written as its escape (`\u0000`, `\ud800`).

    Cut to `max_characters`. Any other text is returned unchanged.
    """
    escaped = _UNENCODABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return escaped if max_characters is None else escaped[:max_characters]


def error_text(error: BaseException, max_characters: int | None = None) -> str:
    """The type and message of an error, `encodable`."""
    return encodable(f"{type(error).__name__}: {error}", max_characters)
