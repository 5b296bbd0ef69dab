"""The `weir` command: one Typer application, one module per subcommand."""

from __future__ import annotations

import typer

app = typer.Typer(name="weir", no_args_is_help=True, help="Meter a stream of API events, and let none of it leak.")

if __name__ == "__main__":
    app()
