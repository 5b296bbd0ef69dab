"""Tables and code as Markdown that GitHub and the guide show alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

_CODE = re.compile(r"(`[^`]*`)")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, whose cells are Markdown already."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("|" + "".join(f" {text} |" if text else " |" for text in line) + "\n" for line in lines)


def cell(text: str) -> str:
    """Prose on one line. Of it only code between backticks is Markdown."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(code(part[1:-1]) if part.startswith("`") else _plain(part) for part in parts)


def code(value: Any) -> str:
    """A value as code; nothing where there is none."""
    text = "" if value is None else str(value)
    if "|" in text or "`" in text:
        # Renderers differ in what a pipe within backticks is to a table.
        return f"<code>{_html(text).replace('|', '&#124;').replace('`', '&#96;').replace('*', '&#42;')}</code>"
    return f"`{text}`" if text else ""


def page(title: str, source: str, introduction: str, body: str) -> str:
    """A whole page. `source` says which code it is generated from."""
    mark = f"<!-- Generated from {source}: run `make render`. -->"
    return f"# {title}\n\n{mark}\n\n{introduction.strip()}\n\n{body.strip()}\n"


def _plain(text: str) -> str:
    return _html(text).replace("*", "\\*").replace("|", "\\|")


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
