"""The `weir` command: one Typer application, one module per subcommand."""

from __future__ import annotations

import sys

import typer

from local.commands.catalog import catalog
from local.commands.compact import compact
from local.commands.compare import compare
from local.commands.dead_letters import dead_letters
from local.commands.demo import demo
from local.commands.drain import drain
from local.commands.journal import journal
from local.commands.produce import produce
from local.commands.retain import retain
from local.commands.rules import rules
from local.commands.sessions import sessions
from local.commands.stack import down, up
from local.commands.status import status
from local.commands.stragglers import stragglers
from local.commands.topics import topics
from local.commands.traffic import traffic
from local.commands.types import types
from local.commands.usage import usage
from local.errors import CannotRun

app = typer.Typer(name="weir", no_args_is_help=True, help="Meter a stream of API events, and let none of it leak.")
app.command()(up)
app.command()(down)
app.command()(status)
app.command()(produce)
app.add_typer(catalog, name="catalog")
app.command()(topics)
app.command()(drain)
app.command()(traffic)
app.command()(compare)
app.command()(compact)
app.command()(retain)
app.command()(demo)
app.command()(usage)
app.command()(sessions)
app.command()(stragglers)
app.command()(types)
app.command()(rules)
app.command("dead-letters")(dead_letters)
app.add_typer(journal, name="journal")


def main() -> None:
    """Run a command. What stands in its way is said in a sentence, with exit status 1."""
    try:
        app()
    except CannotRun as obstacle:
        typer.echo(str(obstacle), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
