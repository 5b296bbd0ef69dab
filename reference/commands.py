"""cli.md: every command of `weir` with its arguments, options and exit statuses, as Typer knows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import typer

from cli.main import EXIT_STATUSES, app
from jobs.runtime.errors import ExitStatus
from reference.markdown import cell, code, page, table

GUIDE = Path(__file__).parents[1] / "docs" / "how-to"
_PROGRAM = "weir"
_TYPES: dict[Any, str] = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH", datetime: "INSTANT"}
_TYPES[timedelta] = "TIME"
_BESIDE_EACH = ("--format", "--limit", "--data-dir")
"""Options of many commands, which are shown once."""
_HOW_TO = {
    "audit": "audit.md",
    "backfill": "backfill.md",
    "catalog": "prices.md",
    "compact": "keep-tables-small.md",
    "corrections": "corrections.md",
    "dead-letters": "dead-letters.md",
    "explain": "explain.md",
    "keys": "post-events.md",
    "meters": "meters.md",
    "produce": "send-events.md",
    "rebuild": "recover-the-database.md",
    "retain": "keep-tables-small.md",
    "stragglers": "late-usage.md",
    "usage": "bills.md",
    "what-if": "what-if.md",
}
"""The guide's page about a command."""
_INTRODUCTION = """
Each command has `--help`. Without arguments, `weir` lists them all. A command that lists things has the
[options that many commands share](#options-that-many-commands-share).
"""


def commands_page() -> str:
    """The page."""
    root: Any = typer.main.get_command(app)
    commands = list(root.commands.values())
    panels: dict[str, list[Any]] = {}
    for command in commands:
        panels.setdefault(command.rich_help_panel, []).append(command)
    overview = "".join(
        f"### {panel}\n\n{table(('command', 'what it does'), map(_summary, of_panel))}\n"
        for panel, of_panel in panels.items()
    )
    sections = "".join(part for command in commands for part in _sections(command, (_PROGRAM,)))
    shared = {option.opts[0]: option for command in commands for option in command.params}
    body = (
        f"## Overview\n\n{overview}## Options that many commands share\n\n"
        f"{_parameters([shared[name] for name in _BESIDE_EACH])}\n{_statuses()}\n{sections}"
    )
    return page("Commands", "the commands in `cli`", _INTRODUCTION, body)


def _summary(command: Any) -> tuple[str, str]:
    name = f"{_PROGRAM} {command.name}"
    return f"[`{name}`](#{name.replace(' ', '-')})", cell(_paragraphs(command)[0])


def _statuses() -> str:
    of_commands = table(("status", "meaning"), [(code(status), cell(text)) for status, text in EXIT_STATUSES.items()])
    of_jobs = table(("status", "meaning"), [(code(status.value), cell(status.meaning)) for status in ExitStatus])
    return f"## Exit status of a command\n\n{of_commands}\n## Exit status of an application\n\n{of_jobs}"


def _sections(command: Any, above: tuple[str, ...]) -> Iterator[str]:
    """The command's section, then those of the commands below it."""
    path = (*above, command.name)
    below = list(getattr(command, "commands", {}).values())
    first, *more = _paragraphs(command)
    about = _HOW_TO.get(command.name) if len(path) == 2 else None
    own = [parameter for parameter in command.params if parameter.opts[0] not in (*_BESIDE_EACH, "--help")]
    shared = [name for name in _BESIDE_EACH if any(name in parameter.opts for parameter in command.params)]
    parts = [
        f"{'#' * len(path)} {' '.join(path)}",
        f"`{_usage(command, path, own, is_group=bool(below))}`",
        *(cell(text) for text in (first, *more)),
        _parameters(own).rstrip() if own else "",
        f"Also {', '.join(map(code, shared))}." if shared else "",
        f"How to: [{_title(about)}](../how-to/{about})." if about else "",
    ]
    yield "\n\n".join(part for part in parts if part) + "\n\n"
    for subcommand in below:
        yield from _sections(subcommand, path)


def _title(guide: str) -> str:
    return (GUIDE / guide).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _usage(command: Any, path: tuple[str, ...], own: list[Any], *, is_group: bool) -> str:
    words = [*path]
    for parameter in own:
        if parameter.param_type_name == "argument":
            name = _type(parameter) + ("…" if parameter.nargs == -1 and not _type(parameter).endswith("…") else "")
            words.append(name if parameter.required else f"[{name}]")
        elif parameter.required:
            words.append(f"{parameter.opts[0]} {_type(parameter)}")
    optional = any(parameter.param_type_name == "option" and not parameter.required for parameter in command.params)
    words += ["[OPTIONS]"] if optional else []
    if is_group:
        words.append("[COMMAND]" if command.invoke_without_command else "COMMAND")
    return " ".join(words)


def _parameters(parameters: list[Any]) -> str:
    return table(("name", "value", "default", "meaning"), map(_parameter, parameters))


def _parameter(parameter: Any) -> tuple[str, str, str, str]:
    is_argument = parameter.param_type_name == "argument"
    name = code(_type(parameter)) if is_argument else ", ".join(map(code, (*parameter.opts, *parameter.secondary_opts)))
    value = "" if is_argument or parameter.is_flag else code(_type(parameter))
    limits = _limits(getattr(parameter, "min", None), getattr(parameter, "max", None))
    variable = f" Or the variable `{parameter.envvar}`." if parameter.envvar else ""
    default = "required" if parameter.required else code(_default(parameter))
    return name, f"{value} {limits}".strip(), default, cell((parameter.help or "") + variable)


def _limits(least: float | None, most: float | None) -> str:
    if least is None and most is None:
        return ""
    if most is None:
        return f"from {least:,}"
    return f"{least:,} to {most:,}"


def _default(parameter: Any) -> Any:
    value = parameter.default
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool):
        # Of a flag that is off there is nothing to say.
        return parameter.opts[0] if value else None
    return value


def _type(parameter: Any) -> str:
    """What stands for the value: the name that the command gives it, the values of a closed set, or its type."""
    if parameter.metavar:
        return str(parameter.metavar)
    kind = parameter.type_descriptor.annotation
    kind = next(iter(get_args(kind)), kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    return _TYPES.get(kind, str(getattr(kind, "__name__", kind)).upper())


def _paragraphs(command: Any) -> list[str]:
    return re.split(r"\n\s*\n", (command.help or "").strip())
