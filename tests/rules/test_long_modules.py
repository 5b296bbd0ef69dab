"""docs/explanation/modules.md names each module above 150 lines, and how the README leads into the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "modules.md"
MIGRATIONS = "jobs/runtime/postgres/migrations/versions/"
LINES = 150
OTHERS = ("tests", "docs", "build")


def rows() -> list[tuple[str, str]]:
    return re.findall(r"^\| `(\S+\.py)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def long_modules() -> set[str]:
    """Of the product, which is all but tests, the guide's hooks and migrations."""
    folders = [folder for folder in ROOT.iterdir() if folder.is_dir() and folder.name not in OTHERS]
    modules = [path for folder in folders if not folder.name.startswith(".") for path in folder.rglob("*.py")]
    long = [path for path in modules if path.read_text(encoding="utf-8").count("\n") > LINES]
    return {name for path in long if not (name := path.relative_to(ROOT).as_posix()).startswith(MIGRATIONS)}


def test_each_long_module_is_named_with_the_one_thing_that_it_holds() -> None:
    named = {path for path, _ in rows()}
    assert sorted(long_modules() - named) == [], "split it, or name it in docs/explanation/modules.md"


def test_no_module_is_named_that_is_gone_or_short_by_now() -> None:
    named = {path for path, _ in rows()}
    assert sorted(named - long_modules()) == [], "leave it out of docs/explanation/modules.md"


def test_each_long_module_is_named_once_and_no_two_hold_the_same() -> None:
    paths, things = zip(*rows(), strict=True)
    assert len(set(paths)) == len(paths)
    assert len(set(things)) == len(things)
    assert len(paths) > 100, "the rows of the page were not read"


def test_each_way_that_the_page_walks_begins_in_the_readme() -> None:
    walked = PAGE.read_text(encoding="utf-8").partition("## From the README")[2].partition("## Long modules")[0]
    places = [(PAGE.parent / place.partition("#")[0]).resolve() for place in re.findall(r"\]\(([^)]+)\)", walked)]
    assert len(places) == 9
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = {(ROOT / place.partition("#")[0]).resolve() for place in re.findall(r"\]\(([^)]+)\)", readme)}
    assert [place for place in places if place not in linked] == []
