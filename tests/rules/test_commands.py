"""What `weir --help` lists of its commands without importing them, and that it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cli.commands import ENTRIES, Entry
from cli.main import app

ROOT: Any = typer.main.get_command(app)
HEAVY = {"confluent_kafka", "deltalake", "numpy", "polars", "psycopg", "pyarrow", "pyspark", "sqlalchemy"}
"""Libraries of which each takes longer to import than Typer takes to answer."""


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_command_is_listed_with_the_first_sentence_of_its_own_help(entry: Entry) -> None:
    command = ROOT.commands[entry.name]
    first = " ".join(command.help.partition("\n\n")[0].split())
    assert (command.name, command.rich_help_panel, first) == (entry.name, entry.panel, entry.summary)
    assert entry.listed().hidden is command.hidden is False


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_help_is_wrapped_by_the_terminal_and_not_by_the_source(entry: Entry) -> None:
    command = ROOT.commands[entry.name]
    for shown in (command, *getattr(command, "commands", {}).values()):
        assert "\n" not in (shown.help or "").replace("\n\n", "")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["unknown"]], ids=["alone", "help", "unknown"])
def test_what_lists_the_commands_imports_none_of_them(arguments: list[str]) -> None:
    imported = modules_of(*arguments)
    assert {module.partition(".")[0] for module in imported} & HEAVY == set()
    assert not any(entry.module in imported for entry in ENTRIES)


def test_status_without_a_stack_imports_no_library_but_the_driver_of_postgres(tmp_path: Path) -> None:
    imported = modules_of("status", "--data-dir", str(tmp_path))
    assert {module.partition(".")[0] for module in imported} & HEAVY == {"psycopg"}
    assert "monitoring.alerts" not in imported


def modules_of(*arguments: str) -> set[str]:
    """What a command has imported when it ends."""
    code = "import sys; from cli.main import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    command = [sys.executable, "-c", code, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    imported = set(ran.stderr.split("\n")[-2].split())
    assert "cli.commands" in imported
    return imported


def test_the_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"weir {version('weir')}\n"


def test_a_wrong_choice_is_refused_in_words_of_the_command_line() -> None:
    refused = CliRunner().invoke(app, ["models", "--by", "nothing"], env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert "Invalid value for '--by': 'nothing' is not one of 'requests', 'tokens'," in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("journal", "accept-loss", "events", "0"),
        ("journal", "skip", "events", "0", "1"),
        ("topics", "remove", "events"),
        ("stragglers", "approve", "1"),
        ("invoices", "void", "weir-1"),
    ],
    ids=" ".join,
)
def test_an_empty_reason_is_a_wrong_option(arguments: tuple[str, ...], tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, [*arguments, "--reason", " ", "--data-dir", str(tmp_path)])
    assert refused.exit_code == 2
    assert "say why" in " ".join(refused.stderr.split())


def test_a_command_of_a_group_is_completed_and_found() -> None:
    assert list(ROOT.commands["keys"].commands) == ["create", "list", "rotate", "limit", "revoke"]
    assert ROOT.get_command(None, "no-such-command") is None


@pytest.mark.parametrize(
    ("earlier", "name"), [(["replay"], ["what-if"]), (["dead-letters", "replay"], ["dead-letters", "redrive"])]
)
def test_an_old_command_name_works_and_names_the_new_one(earlier: list[str], name: list[str]) -> None:
    old, new = (CliRunner().invoke(app, [*words, "--help"]) for words in (earlier, name))
    said = f"`weir {' '.join(earlier)}` is called `weir {' '.join(name)}` now; the next version knows only that name.\n"
    assert (old.exit_code, old.stderr, old.stdout) == (0, said, new.stdout)
    assert new.stderr == ""
    assert earlier[-1] not in CliRunner().invoke(app, [*earlier[:-1], "--help"]).stdout.split()
