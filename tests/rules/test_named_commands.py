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
            # What a message fills in behind a blank is a word of its own: an argument, or the value of an option.
            yield file.name, re.sub(r"\{[^}]*\}", " ", re.sub(r"(?<= )\{[^}]*\}", "X", each)).split()


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


def lacking(words: list[str]) -> list[str]:
    """What the command needs that is not there. A text may name a command alone, without anything that it takes."""
    command, rest = CLI, list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    arguments = [parameter.name.upper() for parameter in command.params if parameter.param_type_name == "argument"]
    required = {parameter.name.upper() for parameter in command.params if parameter.required}
    options = {name: parameter for parameter in command.params for name in parameter.opts if name.startswith("--")}
    given, values = set[str](), iter(rest)
    for word in values:
        if (option := options.get(word.partition("=")[0])) is None:
            given |= set(arguments[:1])
            del arguments[:1]
            continue
        given.add(option.name.upper())
        if not option.is_flag and "=" not in word:
            next(values, None)
    return sorted(required - given) if rest else []


def test_each_command_that_a_text_names_exists_with_its_options() -> None:
    found = list(named())
    assert len(found) > 100
    problems = {(file, " ".join(words), problem) for file, words in found if (problem := wrong(words))}
    assert {(file, command, problem) for file, command, problem in problems if command not in RETIRED} == set()


def test_each_command_of_the_runbook_and_of_a_message_has_what_it_needs() -> None:
    """Somebody copies it at night. The guide may name an option by itself."""
    copied = [(file, words) for file, words in named() if file == "runbook.md" or file.endswith(".py")]
    assert len(copied) > 100
    assert {(file, " ".join(words)): needed for file, words in copied if (needed := lacking(words))} == {}


def test_a_command_that_lacks_something_is_found() -> None:
    assert lacking(["webhooks", "resend", "--dead"]) == ["ENDPOINT"]
    assert lacking(["topics", "remove", "gpu"]) == ["REASON"]
    assert lacking(["journal", "skip", "events", "0", "--reason", "TEXT"]) == ["OFFSET"]
    assert lacking(["topics", "remove", "gpu", "--reason=TEXT"]) == lacking(["topics", "remove"]) == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert wrong(["invoice"]) == "no command invoice"
    assert wrong(["stragglers", "list", "--decision", "hold"]) == "no command list"
    assert wrong(["journal", "restamp", "0", "1", "2", "--topics", "x"]) == "no option --topics"
    assert wrong(["usage", "--window", "P1M"]) is None
