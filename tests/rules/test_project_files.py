"""The files that people and tools expect at the root of a project: each says what is true of the project."""

from __future__ import annotations

import hashlib
import re
import tomllib
from itertools import combinations
from typing import Any

import pytest
import yaml

from tests.pages import README, ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
LICENSE_TEXTS = {"Apache-2.0": "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"}
"""SPDX identifier → SHA-256 of the licence's text, as its authors publish it."""
SAID = {
    "CONTRIBUTING.md": ("make setup", "make check", "make test", "docs/decisions/index.md", "CHANGELOG.md"),
    "SECURITY.md": ("privately", "Report a vulnerability"),
    "CODE_OF_CONDUCT.md": ("Contributor Covenant, version 2.1", "SECURITY.md"),
    "LICENSE": ("Apache License",),
}
"""File → what it cannot do without."""
ENTRY_CHARACTERS = 160
"""Of a line in the changelog; what needs more stands in the guide."""
ENOUGH_WORDS, SAME_SHARE = 8, 0.8
"""Entries of so many different words, of which the shorter one shares so many, say the same: a merge kept both."""


def document(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def commands_of(target: str) -> list[str]:
    """What make runs for a target, with the Makefile's variables put in."""
    values = dict(re.findall(r"^(\w+) := (.*)$", MAKEFILE, re.MULTILINE))
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe, target
    text = recipe[1]
    while re.search(r"\$\(\w+\)", text):
        text = re.sub(r"\$\((\w+)\)", lambda name: values[name[1]], text)
    return [line.strip() for line in text.splitlines()]


def test_the_licence_in_pyproject_is_the_one_whose_text_is_in_the_repository() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == LICENSE_TEXTS[PROJECT["license"]]
    assert not [name for name in PROJECT["classifiers"] if name.startswith("License ::")], "the SPDX identifier says it"


@pytest.mark.parametrize("name", SAID)
def test_each_file_has_what_people_look_for_and_the_readme_links_to_it(name: str) -> None:
    text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
    assert [words for words in SAID[name] if words not in text] == []
    pages = (README, ROOT / "CONTRIBUTING.md")
    assert any(f"]({name})" in page.read_text(encoding="utf-8") for page in pages if page.name != name)


def test_a_commit_is_checked_by_what_make_check_runs() -> None:
    (repository,) = document(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local", "hooks of elsewhere would have other versions than requirements/dev.txt"
    assert re.search(r"^check: .*\n\t@\$\(MAKE\) .*\$\(CHECKS\)$", MAKEFILE, re.MULTILINE)
    (parts,) = re.findall(r"^CHECKS := (.+)$", MAKEFILE, re.MULTILINE)
    checked = [command for part in parts.split() for command in commands_of(part)]
    assert sorted(hook["entry"].removeprefix("env ") for hook in repository["hooks"]) == sorted(checked)
    assert not [hook for hook in repository["hooks"] if hook["pass_filenames"] or not hook["always_run"]]


def test_the_workflow_runs_what_ci_runs_and_nothing_else() -> None:
    (job,) = document(".github/workflows/ci.yml")["jobs"].values()
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs[-1] == "bash .ci/run"
    assert [run for run in runs[:-1] if not run.startswith("git config ")] == []
    assert {"make setup", "make check", "make test"} <= {*(ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()}


@pytest.mark.parametrize("kind", ["bug", "feature"])
def test_an_issue_template_asks_for_something(kind: str) -> None:
    form = document(f".github/ISSUE_TEMPLATE/{kind}.yml")
    assert form["name"]
    assert form["description"]
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_each_package_that_is_shipped_says_that_it_is_typed() -> None:
    setuptools = PYPROJECT["tool"]["setuptools"]
    packages = [pattern.removesuffix("*") for pattern in setuptools["packages"]["find"]["include"]]
    assert [name for name in packages if not (ROOT / name / "py.typed").is_file()] == []
    assert "py.typed" in setuptools["package-data"]["*"]
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_no_dependency_stands_twice_in_its_group_or_in_two_of_them() -> None:
    groups = (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    names = [re.split(r"[\[<>=!~; ]", requirement)[0].lower() for group in groups for requirement in group]
    assert sorted(names) == sorted(set(names))


def test_editors_wrap_where_the_formatter_does() -> None:
    lengths = re.findall(r"^max_line_length = (\d+)$", (ROOT / ".editorconfig").read_text("utf-8"), re.MULTILINE)
    assert lengths == [str(PYPROJECT["tool"]["ruff"]["line-length"])]


def test_an_entry_of_the_changelog_is_one_line_that_fits() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    _, *entries = lines[lines.index(next(line for line in lines if line.startswith("## "))) :]
    assert [line for line in entries if line and not line.startswith(("- ", "#"))] == []
    assert [line for line in lines if len(line) > ENTRY_CHARACTERS] == []
    linked = re.findall(r"\]\((?!\w+:)([^)#]+)", "\n".join(lines))
    assert [target for target in linked if not (ROOT / target).exists()] == []


def test_the_changelog_says_nothing_twice() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for section in re.split(r"^#{2,3} ", text, flags=re.MULTILINE):
        entries = re.findall(r"^- (.+)$", section, re.MULTILINE)
        words = {entry: set(re.findall(r"\w+", entry.lower())) for entry in entries}
        long = [entry for entry in entries if len(words[entry]) >= ENOUGH_WORDS]
        assert len(set(entries)) == len(entries)
        assert [
            (one, other)
            for one, other in combinations(long, 2)
            if len(words[one] & words[other]) >= SAME_SHARE * min(len(words[one]), len(words[other]))
        ] == []
