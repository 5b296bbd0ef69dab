"""What the guide's build adds to MkDocs: pages that are kept elsewhere, and links to files that are no pages."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)")
"""A link of Markdown to another file: its text, the path, and the heading."""
INCLUDED = {
    "monitoring/runbook.md": "reference/runbook.md",
    "charts/weir/README.md": "reference/chart-readme.md",
}
"""Pages of the guide that other parts of Weir ship, by their path in the repository."""

MOVED = {"how-to/ask.html": "query-usage.html"}
"""Pages of an earlier release → where they are now."""


def on_files(files: Any, config: Any) -> Any:
    """The guide's files, with the pages that are kept elsewhere."""
    from mkdocs.structure.files import File

    for path, uri in INCLUDED.items():
        files.append(File.generated(config, uri, abs_src_path=str(Path(config.docs_dir).parent / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 — MkDocs' signature
    """The page, in which a link to a file outside of docs leads to the page that it became, or to the repository.

    Where `repo_url` is not set, it becomes the file's path. MkDocs' strict build warns of links that lead nowhere.
    """
    root = Path(config.docs_dir).parent
    uri = page.file.src_uri
    origin = next((path for path, included in INCLUDED.items() if included == uri), posixpath.join("docs", uri))

    def replaced(link: re.Match[str]) -> str:
        text, target, heading = link.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if path in INCLUDED or path.startswith("docs/"):
            there = INCLUDED.get(path, path.removeprefix("docs/"))
            return f"[{text}]({posixpath.relpath(there, posixpath.dirname(uri))}{heading or ''})"
        if not (root / path).exists():
            return link[0]
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{heading or ''})"
        return text if text.strip("`") == path else f"{text} (`{path}`)"

    return LINK.sub(replaced, markdown)


def on_post_build(*, config: Any) -> None:
    """A page that has moved leads to its new place."""
    for page, target in MOVED.items():
        file = Path(config.site_dir) / page
        file.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a href="{target}">Moved</a>'
        )
