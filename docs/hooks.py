"""What the guide's build adds to MkDocs: the pages of docs/reference, and links to files that are not pages."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)")
"""A link of Markdown to another file: its text, the path, and the heading."""


def on_config(config: Any) -> Any:
    """The section Reference lists each page of docs/reference, which commands generate."""
    (reference,) = (section["Reference"] for section in config.nav if "Reference" in section)
    folder = Path(config.docs_dir) / "reference"
    pages = [f"reference/{path.name}" for path in sorted(folder.glob("*.md"))]
    reference.extend(page for page in pages if page not in reference)
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 — MkDocs' signature
    """The page, in which a link to a file outside of docs leads to the repository.

    Where `repo_url` is not set, it becomes the file's path. MkDocs' strict build warns of links that lead nowhere.
    """
    root = Path(config.docs_dir).parent
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def replaced(link: re.Match[str]) -> str:
        text, target, heading = link.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith("docs/") or not (root / path).exists():
            return link[0]
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{heading or ''})"
        return text if text.strip("`") == path else f"{text} (`{path}`)"

    return LINK.sub(replaced, markdown)
