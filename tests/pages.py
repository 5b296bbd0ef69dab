"""The README, what a contributor reads, and the pages of the guide, as tests read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [
    README,
    *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT")),
    *sorted(DOCS.rglob("*.md")),
]
HISTORY = DOCS / "decisions"
"""Decisions stay as they were written: what they name may be gone."""

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^\n]+?) -->\n *)?(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)\n *```", re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. `why` is why no test runs it, where its page says so."""

    page: str
    language: str
    text: str
    why: str | None

    @property
    def name(self) -> str:
        """Where it stands, for a person who reads that a test failed."""
        return f"{self.page}: {self.text.partition(chr(10))[0][:60]}"


def blocks() -> Iterator[Block]:
    """Every fenced block of every page but the decisions."""
    for page in PAGES:
        if page.parent == HISTORY:
            continue
        yield from blocks_in(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))


def blocks_in(text: str, page: str) -> Iterator[Block]:
    """The fenced blocks in the text of a page, or of a part of it."""
    for found in _BLOCK.finditer(text):
        unindented = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        yield Block(page, found["language"], unindented, found["why"])


def blocks_of(language: str) -> list[Block]:
    """Those in one language."""
    return [block for block in blocks() if block.language == language]


def guide() -> str:
    """The text of all of them but the decisions, with single spaces."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES if page.parent != HISTORY]
    return " ".join("\n".join(texts).split())


def row_of(page: str, first: str) -> str:
    """The row that begins with `first`, in a table of a page of docs."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"^\| {re.escape(first)} \|(.*)$", text, re.MULTILINE)
    assert found, f"docs/{page} has no row {first}"
    return found[1]
