"""`python -m api`: serves HTTP until SIGTERM.

Reads WEIR_KAFKA_*, WEIR_POSTGRES_URL, WEIR_API_HOST (all addresses) and WEIR_API_PORT (8080).
"""

from __future__ import annotations

import os
import socket
import sys

import structlog
import typer

from api.server import serve
from deployment.errors import CannotRun

HOST_VARIABLE, PORT_VARIABLE = "WEIR_API_HOST", "WEIR_API_PORT"
ANY_HOST, DEFAULT_PORT = "0.0.0.0", "8080"


def main() -> int:
    """Exit status: 2 where the environment lacks something."""
    try:
        host, port = os.environ.get(HOST_VARIABLE, ANY_HOST), os.environ.get(PORT_VARIABLE, DEFAULT_PORT)
        if not port.isdigit():
            raise CannotRun(f"{PORT_VARIABLE} is {port!r}, but must be a port.")
        log_without_variables()
        serve(os.environ, host, int(port), socket.gethostname())
    except CannotRun as problem:
        typer.echo(str(problem), err=True)
        return 2
    return 0


def log_without_variables() -> None:
    """A traceback is without local variables, which hold the keys and the events of whoever sent the request."""
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stdout.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])


if __name__ == "__main__":
    sys.exit(main())
