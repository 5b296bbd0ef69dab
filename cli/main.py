"""The `weir` command: one Typer application, one module per subcommand."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from cli.lazy_group import LazyGroup
from deployment.errors import CannotRun
from jobs.runtime.errors import ExitStatus, Refused

app = typer.Typer(name="weir", cls=LazyGroup, no_args_is_help=True)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"weir {version('weir')}")
        raise typer.Exit


@app.callback(epilog="Begin with `weir demo`, or with `weir up` and `weir produce`.")
def weir(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Usage metering for AI APIs: from Kafka to the bill, and every record is accounted for."""


EXIT_STATUSES: Mapping[int, str] = {
    0: "done",
    1: "not possible now, or not as it should be: standard error says what, and what to do",
    2: "a wrong option, argument or file: one that cannot be read, or does not hold what the command takes",
    3: "refused: a newer version of Weir writes what the command would change, a table is not the one that its readers "
    "know, or what should be rebuilt or replayed no longer exists",
}
"""What the status of every command means."""


def main() -> None:
    """Run a command. An error is printed as a sentence, with exit status 1; a refusal has 3, as for a job."""
    try:
        app()
    except CannotRun as error:
        typer.echo(str(error), err=True)
        sys.exit(1)
    except Refused as refusal:
        typer.echo(str(refusal), err=True)
        sys.exit(ExitStatus.REFUSED)
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("laptop."):
            raise
        typer.echo(
            "This command starts or stops Weir on your own machine, which this image cannot do: on a cluster use helm.",
            err=True,
        )
        sys.exit(1)
    except Exception as error:
        if (sentence := _of_a_store(error)) is None:
            raise
        typer.echo(sentence, err=True)
        sys.exit(1)


def _of_a_store(error: Exception) -> str | None:
    """A sentence for an error of the library that reads and writes tables; None for any other."""
    from deltalake.exceptions import CommitFailedError, DeltaError  # it takes longer than `weir --help`

    from jobs.runtime.unreachable import conflict_sentence, store_sentence

    if isinstance(error, CommitFailedError):
        return conflict_sentence(error)
    return store_sentence(error) if isinstance(error, DeltaError | OSError) else None


if __name__ == "__main__":
    main()
