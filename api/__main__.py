"""`python -m api`: serves HTTP until SIGTERM, and its metrics on a port of their own.

Reads WEIR_KAFKA_*, WEIR_POSTGRES_URL, WEIR_TABLES (unset: no request is explained), WEIR_API_HOST (all addresses),
WEIR_API_PORT (8080), WEIR_API_MAX_LAG_SECONDS (86400), WEIR_API_ACCOUNT_ATTRIBUTE (weir.account),
WEIR_API_REQUESTS_PER_SECOND and WEIR_API_EVENTS_PER_MINUTE (of each key without limits of its own; 0: none),
WEIR_API_OIDC_ISSUER, WEIR_API_OIDC_AUDIENCE, WEIR_API_OIDC_ACCOUNTS_CLAIM (weir_accounts) and
WEIR_API_OIDC_SCOPES_CLAIM (scope) of the identity provider whose tokens are taken (unset: none),
WEIR_METRICS_HOST (127.0.0.1), WEIR_METRICS_PORT (0: any that is free) and WEIR_METRICS_TOKEN (which a scrape must
bring; unset: none).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

import typer

from api.request_metrics import FORBIDDEN
from api.server import serve, whole_number
from deployment.errors import CannotRun
from jobs.logs import log_for_people
from metering.vocabulary import Reason
from monitoring import instruments
from monitoring.exposed import init_labels
from monitoring.metrics import API

HOST_VARIABLE, PORT_VARIABLE = "WEIR_API_HOST", "WEIR_API_PORT"
ANY_HOST, DEFAULT_PORT = "0.0.0.0", "8080"
METRICS_HOST_VARIABLE, METRICS_PORT_VARIABLE = "WEIR_METRICS_HOST", "WEIR_METRICS_PORT"
METRICS_TOKEN_VARIABLE = "WEIR_METRICS_TOKEN"
THIS_MACHINE, ANY_FREE_PORT = "127.0.0.1", "0"


def main() -> int:
    """Exit status: 2 where the environment lacks something, or a port is taken."""
    try:
        host, port = os.environ.get(HOST_VARIABLE, ANY_HOST), port_in(os.environ, PORT_VARIABLE, DEFAULT_PORT)
        log_for_people()
        serve_metrics(os.environ)
        serve(os.environ, host, port, socket.gethostname())
    except CannotRun as problem:
        typer.echo(str(problem), err=True)
        return 2
    return 0


def serve_metrics(environment: Mapping[str, str]) -> None:
    """Serve `/metrics` where strangers who post events cannot ask for it. Raises CannotRun."""
    host = environment.get(METRICS_HOST_VARIABLE, THIS_MACHINE)
    port = port_in(environment, METRICS_PORT_VARIABLE, ANY_FREE_PORT)
    init_labels(API, reasons=(*Reason, FORBIDDEN))
    try:
        instruments.serve(port, host, environment.get(METRICS_TOKEN_VARIABLE, ""))
    except OSError as error:
        raise CannotRun(f"Metrics cannot be served at {host}:{port} ({METRICS_PORT_VARIABLE}): {error}.") from error


def port_in(environment: Mapping[str, str], variable: str, default: str) -> int:
    """The port in a variable. Raises CannotRun."""
    return whole_number(variable, environment.get(variable, default), "a port")


if __name__ == "__main__":
    sys.exit(main())
