"""The README is one page, each link of it and of the guide leads somewhere, and each decision is found by subject."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.hooks import INCLUDED, MOVED
from tests.pages import DOCS, HISTORY, PAGES, README, ROOT

README_BYTES = 9_000
"""What somebody reads who has a minute."""
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")
PICTURE = re.compile(r'(?:src|srcset)="([^"]+)"')
LATER = re.compile(r"^\*\*(Superseded|Amended)\*\* by \[(\d{4})\]", re.MULTILINE)
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc(?:set)?=.?https?:|<link\b(?![^>]*canonical)[^>]*\bhref=.?https?:"
)
"""What a browser gets from another server when it shows a page."""
ROW = re.compile(r"^\| \[(\d{4})\]\((\1-[\w-]+\.md)\) \| (.+) \| (.*)\|$", re.MULTILINE)
"""Of the index of decisions: number, file, what was decided, and what supersedes it."""
DECISIONS = {path.name: path.read_text(encoding="utf-8") for path in HISTORY.glob("[0-9]*.md")}


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub and MkDocs make them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_readme_is_one_page() -> None:
    assert len(README.read_bytes()) <= README_BYTES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, heading in [*LINK.findall(text), *((picture, "") for picture in PICTURE.findall(text))]:
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        # GitHub shows the picture of the reader's theme by such a name.
        if heading and not heading.startswith("gh-"):
            assert heading in headings(file), f"{target}#{heading}"


def test_the_picture_of_the_flow_differs_between_themes_in_its_colours_alone() -> None:
    light, dark = (
        re.sub(r"#[0-9a-f]{6}", "", (DOCS / f"assets/flow-{theme}.svg").read_text()) for theme in ("light", "dark")
    )
    assert light == dark


def test_each_decision_is_in_the_index_once_with_its_successors() -> None:
    rows = ROW.findall((HISTORY / "index.md").read_text(encoding="utf-8"))
    assert sorted(file for _, file, *_ in rows) == sorted(DECISIONS)
    for number, file, _, by in rows:
        how = "Amended" if by.startswith("in part by") else "Superseded"
        assert LATER.findall(DECISIONS[file]) == [(how, later) for later in re.findall(r"\d{4}(?=\])", by)], file
        assert all(later > number for later in re.findall(r"\d{4}(?=\])", by)), file


def test_the_guide_leads_to_no_decision_that_another_replaced() -> None:
    rows = ROW.findall((HISTORY / "index.md").read_text(encoding="utf-8"))
    replaced = {file for _, file, _, by in rows if by.startswith("by ")}
    assert replaced
    pages = [page for page in PAGES if page.parent != HISTORY]
    linked = {(page.name, Path(link).name) for page in pages for link, _ in LINK.findall(page.read_text("utf-8"))}
    assert {(page, file) for page, file in linked if file in replaced} == set()


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without making what its tags name."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def test_each_page_is_in_the_navigation() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)

    def pages(section: Any) -> set[str]:
        if isinstance(section, str):
            return {section}
        parts = section.values() if isinstance(section, dict) else section
        return set().union(*(pages(part) for part in parts))

    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    elsewhere = {page for page in written if re.match(r"decisions/\d", page)}
    assert pages(settings["nav"]) == written - elsewhere | set(INCLUDED.values())


def test_the_guide_builds_and_a_page_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    if find_spec("mkdocs") is None:
        assert not os.environ.get("CI"), "CI installs requirements/dev.txt"
        pytest.skip("mkdocs is not installed: run `make setup`")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(DECISIONS)
    assert [page for page, target in MOVED.items() if not (tmp_path / page).with_name(target).exists()] == []
    assert [page.name for page in pages if FETCHED.search(page.read_text(encoding="utf-8"))] == []
    assert [page.name for page in pages if 'class="mermaid"' in page.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("link", "holds"),
    [
        *(
            (f"jobs/{job}/pipeline.py", "JOB = ")
            for job in ("ingestion", "sessionization", "joins", "billing", "analytics")
        ),
        ("jobs/billing/sums.py", "is_straggler ="),
        ("metering/joining.py", "def fold("),
        ("jobs/joins/pricing.py", "def price("),
        ("docs/how-to/meters.md", "meters:"),
        ("docs/reference/alerts.md", "fires when"),
    ],
)
def test_a_newcomer_finds_each_answer_one_click_from_the_readme(link: str, holds: str) -> None:
    assert f"]({link})" in README.read_text(encoding="utf-8")
    assert holds in (ROOT / link).read_text(encoding="utf-8")
