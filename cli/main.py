"""The `weir` command: one Typer application, one module per subcommand."""

from __future__ import annotations

import sys

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
from cli.explain import explain
from cli.journal import journal
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
app.command()(up)
app.command()(down)
app.command()(status)
app.command()(produce)
app.command()(backfill)
app.add_typer(contracts, name="contracts")
app.add_typer(catalog, name="catalog")
app.command()(topics)
app.command()(drain)
app.command()(traffic)
app.command()(compare)
app.command()(compact)
app.command()(retain)
app.command()(rebuild)
app.command()(demo)
app.add_typer(usage, name="usage")
app.command()(explain)
app.command()(meters)
app.command()(sessions)
app.add_typer(stragglers, name="stragglers")
app.command()(corrections)
app.command()(types)
app.command()(rules)
app.command()(audit)
app.command()(replay)
app.add_typer(dead_letters, name="dead-letters")
app.command()(conflicts)
app.add_typer(journal, name="journal")


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
