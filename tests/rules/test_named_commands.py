"""Each `weir …` that a text tells a person to run is a command, with options that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from cli.main import app

ROOT = Path(__file__).parents[2]
ROOTS = {path.parent for path in ROOT.glob("*/__init__.py")} - {ROOT / "tests"}
CLI: Any = typer.main.get_command(app)
SPAN = re.compile(r"`weir ([a-z][^`]*)`")
LINE = re.compile(r"^(?:.*?(?:\$|&&|--|then|-c) )?'?weir ([a-z][^#\n]*)", re.MULTILINE)
LIST = re.compile(r"\[weir, ([^\]]*)\]")
NAME = re.compile(r"[a-z][a-z-]*")
BROKEN = re.compile(r'"\s*\n\s*f?"')
"""Where a text of Python's goes on in the next line."""
RETIRED = {"catalog publish"}
"""Commands of earlier releases, which the changelog and a decision name."""


def named() -> Iterator[tuple[str, list[str]]]:
    """File, and the words of each command in it."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "monitoring").glob("*.md")]
    pages += [*(ROOT / "charts").rglob("*.md"), *(ROOT / "charts").rglob("*.tpl"), *(ROOT / "charts").rglob("*.yaml")]
    for page in pages:
        text = page.read_text()
        blocks = "\n".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL))
        found = [*SPAN.findall(text), *LINE.findall(blocks), *(each.replace(",", " ") for each in LIST.findall(text))]
        yield from ((page.name, each.split()) for each in found)
    for file in (file for root in ROOTS for file in root.rglob("*.py")):
        for each in SPAN.findall(BROKEN.sub("", file.read_text())):
            yield file.name, re.sub(r"\{[^}]*\}", " ", each).split()


def wrong(words: list[str]) -> str | None:
    """What is wrong with a command; None when it can be run."""
    command, options = CLI, {"--help"}
    for word, before in zip(words, [None, *words], strict=False):
        if word in getattr(command, "commands", {}):
            command = command.commands[word]
            options |= {option for parameter in command.params for option in parameter.opts}
        elif command is CLI or (hasattr(command, "commands") and before == command.name and NAME.fullmatch(word)):
            return f"no command {word}"
        elif word.startswith("--") and (option := word.partition("=")[0].rstrip(".,;:)")) not in options:
            return f"no option {option}"
    return None


def test_each_command_that_a_text_names_exists_with_its_options() -> None:
    found = list(named())
    assert len(found) > 100
    problems = {(file, " ".join(words), problem) for file, words in found if (problem := wrong(words))}
    assert {(file, command, problem) for file, command, problem in problems if command not in RETIRED} == set()


def test_a_command_that_does_not_exist_is_found() -> None:
    assert wrong(["invoice"]) == "no command invoice"
    assert wrong(["stragglers", "list", "--decision", "hold"]) == "no command list"
    assert wrong(["journal", "restamp", "0", "1", "2", "--topics", "x"]) == "no option --topics"
    assert wrong(["usage", "--window", "P1M"]) is None
