"""The `weir` command: one Typer application, one module per subcommand."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import typer
from deltalake.exceptions import DeltaError

from cli.arguments import Arguments
from cli.audit import audit
from cli.backfilling.command import backfill
from cli.catalog import catalog
from cli.compact import compact
from cli.compare import compare
from cli.conflicts import conflicts
from cli.contracts import contracts
from cli.corrections import corrections
from cli.dead_letters import dead_letters
from cli.demo import demo
from cli.drain import drain
from cli.explain.command import explain
from cli.journal import journal
from cli.keys import keys
from cli.meters import meters
from cli.produce import produce
from cli.rebuild import rebuild
from cli.replay import replay
from cli.retain import retain
from cli.rules import rules
from cli.sessions import sessions
from cli.stack import down, up
from cli.status import status
from cli.stragglers import stragglers
from cli.topics import topics
from cli.traffic import traffic
from cli.types import types
from cli.usage import usage
from deployment.errors import CannotRun
from jobs.runtime.errors import ExitStatus, Refused
from jobs.runtime.unreachable import store_sentence

app = typer.Typer(
    name="weir", cls=Arguments, no_args_is_help=True, help="Meter a stream of API events, and let none of it leak."
)
_RUN, _LOOK, _CHANGE, _REPAIR = "Run", "Look", "Change", "Repair"
app.command(rich_help_panel=_RUN)(up)
app.command(rich_help_panel=_RUN)(down)
app.command(rich_help_panel=_RUN)(demo)
app.command(rich_help_panel=_RUN)(status)
app.command(rich_help_panel=_RUN)(topics)
app.command(rich_help_panel=_RUN)(produce)
app.command(rich_help_panel=_RUN)(drain)
app.command(rich_help_panel=_RUN)(traffic)
app.command(rich_help_panel=_RUN)(compare)
app.add_typer(usage, name="usage", rich_help_panel=_LOOK)
app.command(rich_help_panel=_LOOK)(explain)
app.command(rich_help_panel=_LOOK)(meters)
app.command(rich_help_panel=_LOOK)(sessions)
app.command(rich_help_panel=_LOOK)(corrections)
app.command(rich_help_panel=_LOOK)(conflicts)
app.command(rich_help_panel=_LOOK)(types)
app.command(rich_help_panel=_LOOK)(rules)
app.add_typer(contracts, name="contracts", rich_help_panel=_LOOK)
app.command(rich_help_panel=_LOOK)(replay)
app.add_typer(catalog, name="catalog", rich_help_panel=_CHANGE)
app.add_typer(keys, name="keys", rich_help_panel=_CHANGE)
app.add_typer(stragglers, name="stragglers", rich_help_panel=_CHANGE)
app.command(rich_help_panel=_CHANGE)(backfill)
app.command(rich_help_panel=_REPAIR)(audit)
app.add_typer(dead_letters, name="dead-letters", rich_help_panel=_REPAIR)
app.add_typer(journal, name="journal", rich_help_panel=_REPAIR)
app.command(rich_help_panel=_REPAIR)(rebuild)
app.command(rich_help_panel=_REPAIR)(compact)
app.command(rich_help_panel=_REPAIR)(retain)

EXIT_STATUSES: Mapping[int, str] = {
    0: "done",
    1: "not possible now, or not as it should be: standard error says what, and what to do",
    2: "a wrong option, argument or file",
    3: "refused: a newer version of Weir writes what the command would change, a table is not the one that its readers "
    "know, or what should be rebuilt or replayed no longer exists",
}
"""What the status of every command means."""


def main() -> None:
    """Run a command. What stands in its way is said in a sentence, with exit status 1; a refusal's is 3, as a job's."""
    try:
        app()
    except CannotRun as obstacle:
        typer.echo(str(obstacle), err=True)
        sys.exit(1)
    except Refused as refusal:
        typer.echo(str(refusal), err=True)
        sys.exit(ExitStatus.REFUSED)
    except (DeltaError, OSError) as error:
        if (sentence := store_sentence(error)) is None:
            raise
        typer.echo(sentence, err=True)
        sys.exit(1)
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("laptop."):
            raise
        typer.echo(
            "This command starts or stops Weir on your own machine, which this image cannot do: on a cluster use helm.",
            err=True,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
