"""`weir` itself: lists its commands without importing them, and imports the one that runs."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import typer

from cli.arguments import Arguments, renamed
from cli.commands import EARLIER, ENTRIES
from deployment.errors import FileRefused


class Commands(MutableMapping[str, Any]):
    """The commands by name; each is loaded when it is first asked for."""

    def __init__(self) -> None:
        self.entries = {entry.name: entry for entry in ENTRIES}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self.entries[name].load()
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"the command {name} stays")

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class LazyGroup(Arguments):
    """`weir` itself."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Commands = Commands()

    def list_commands(self, _ctx: Any) -> list[str]:
        """The names, in the order of the help."""
        return list(self.commands)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """What is listed of a command: without importing it."""
        entry = self.commands.entries.get(cmd_name)
        return None if entry is None else entry.listed()

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that is to run."""
        name, listed, rest = super().resolve_command(ctx, renamed(args, EARLIER, "weir"))
        return name, listed if name is None else self.commands[name], rest

    def invoke(self, ctx: Any) -> Any:
        """Run it. A wrong value is refused without the words that pydantic puts before the reason."""
        try:
            return super().invoke(ctx)
        except FileRefused as refused:
            typer.echo(str(refused), err=True)
            raise typer.Exit(2) from None
        except typer.BadParameter as refused:
            refused.message = refused.message.removeprefix("Value error, ")
            raise
