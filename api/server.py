"""The process: uvicorn's settings, and the application's connections to Kafka and Postgres."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import uvicorn

from api.app import application
from api.bearer_tokens import TokenIssuer
from api.database_poll import DatabasePoll
from api.endpoint_store import EndpointStore
from api.events import ACCOUNT_ATTRIBUTE, Services
from api.ingestion_lag import MAX_LAG_SECONDS
from api.issuer_keys import IssuerKeys
from api.producer import AcknowledgedProducer
from api.reader import AccountReader
from api.slow_clients import MAX_CONNECTIONS, HeadTimeoutProtocol, allow_connections
from api.tables import StoredTables
from api.validation import Validator
from api.window_stream import WindowStreams
from deployment.errors import CannotRun
from deployment.kafka_client import kafka_client
from deployment.stack import (
    KAFKA_VARIABLE,
    POSTGRES_VARIABLE,
    TABLES_VARIABLE,
    postgres_url_of,
    refuse_unreachable_tables,
)
from jobs.runtime.clock import MachineClock
from metering.api_keys import RateLimits

MAX_LAG_VARIABLE = "WEIR_API_MAX_LAG_SECONDS"
ACCOUNT_ATTRIBUTE_VARIABLE = "WEIR_API_ACCOUNT_ATTRIBUTE"
ISSUER_VARIABLES = {
    "issuer": "WEIR_API_OIDC_ISSUER",
    "audience": "WEIR_API_OIDC_AUDIENCE",
    "accounts_claim": "WEIR_API_OIDC_ACCOUNTS_CLAIM",
    "scopes_claim": "WEIR_API_OIDC_SCOPES_CLAIM",
}
"""Of the identity provider whose tokens are taken, by the field of `TokenIssuer`."""
REQUESTS_PER_SECOND_VARIABLE = "WEIR_API_REQUESTS_PER_SECOND"
EVENTS_PER_MINUTE_VARIABLE = "WEIR_API_EVENTS_PER_MINUTE"
"""The default of each key, in each server; 0: no limit."""
SERVER_HEADER = "weir-door"
"""Header of each record: which server took it."""
MAX_EXPLANATIONS, MAX_WAITING_EXPLANATIONS = 1, 8
"""At the same time, and waiting; further ones are refused."""
MAX_HEADER_BYTES = 64 << 10
IDLE_SECONDS = 620
"""Longer than load balancers keep a connection that they may use again (60 s, and Google's 600): if the server ends it
first, a request that comes at that moment fails, and not every client sends it again.
"""
SWITCH_SECONDS = 0.001
"""Python's default is five times that. The validator's thread hands over to the loop some fifty times in a call, and
waits so long each time that it wants to go on while the loop is busy."""
ENDS_WITHIN_SECONDS = 20


def serve(environment: Mapping[str, str], host: str, port: int, server_name: str) -> None:
    """Serve until SIGTERM or SIGINT. Raises CannotRun where the environment lacks an address."""
    sys.setswitchinterval(SWITCH_SECONDS)
    allow_connections()
    uvicorn.run(application(services_of(environment, server_name)), **settings(host, port))


def services_of(environment: Mapping[str, str], server_name: str) -> Services:
    """What requests are answered with. `server_name` stands in SERVER_HEADER of each record. Raises CannotRun."""
    if missing := sorted({KAFKA_VARIABLE, POSTGRES_VARIABLE} - environment.keys()):
        raise CannotRun(f"{' and '.join(missing)} must be set.")
    limits = RateLimits(
        requests_per_second=_count_in(environment, REQUESTS_PER_SECOND_VARIABLE),
        events_per_minute=_count_in(environment, EVENTS_PER_MINUTE_VARIABLE),
    )
    clock = MachineClock()
    validator = Validator()
    refuse_unreachable_tables(environment)
    postgres_url, tables = postgres_url_of(environment), environment.get(TABLES_VARIABLE)
    kafka = kafka_client(environment[KAFKA_VARIABLE])
    database = DatabasePoll(postgres_url, clock, validator.use, validator.avoid)
    return Services(
        database,
        validator,
        AcknowledgedProducer(kafka, {SERVER_HEADER: server_name.encode()}),
        clock,
        max_lag_seconds=seconds_in(environment, MAX_LAG_VARIABLE, MAX_LAG_SECONDS),
        rate_limits=limits,
        issuer=None if (issuer := issuer_in(environment)) is None else IssuerKeys(issuer, clock),
        reader=AccountReader(postgres_url),
        explaining=AccountReader(postgres_url, sessions=MAX_EXPLANATIONS, max_waiting=MAX_WAITING_EXPLANATIONS),
        tables=StoredTables(tables.rstrip("/"), environment[KAFKA_VARIABLE]) if tables else None,
        endpoints=EndpointStore(postgres_url),
        streams=WindowStreams.of(kafka, database, clock),
        account_attribute=environment.get(ACCOUNT_ATTRIBUTE_VARIABLE) or ACCOUNT_ATTRIBUTE,
    )


def issuer_in(environment: Mapping[str, str]) -> TokenIssuer | None:
    """The identity provider of an environment; None without WEIR_API_OIDC_*. Raises CannotRun."""
    given = {field: environment[name] for field, name in ISSUER_VARIABLES.items() if environment.get(name)}
    if not given:
        return None
    if lacking := [ISSUER_VARIABLES[field] for field in ("issuer", "audience") if field not in given]:
        raise CannotRun(f"{' and '.join(lacking)} must be set, too: a token of another program would be taken.")
    try:
        return TokenIssuer(**given)
    except ValueError as problem:
        raise CannotRun(f"{ISSUER_VARIABLES['issuer']}: {problem}.") from None


def seconds_in(environment: Mapping[str, str], variable: str, default: int) -> int:
    """The whole seconds in a variable. Raises CannotRun."""
    return whole_number(variable, environment.get(variable) or str(default), "whole seconds")


def _count_in(environment: Mapping[str, str], variable: str) -> int:
    return whole_number(variable, environment.get(variable) or "0", "a whole number")


def whole_number(variable: str, text: str, meaning: str) -> int:
    """The number in a variable's text. Raises CannotRun."""
    if not (text.isascii() and text.isdigit()):
        raise CannotRun(f"{variable} is {text!r}, but must be {meaning}.")
    return int(text)


def settings(host: str, port: int, ends_within_seconds: int = ENDS_WITHIN_SECONDS) -> dict[str, Any]:
    """Uvicorn's settings. Its access log is off: it would have a line for each event of a single POST."""
    return {
        "host": host,
        "port": port,
        "http": HeadTimeoutProtocol,
        "ws": "none",
        "lifespan": "on",
        "access_log": False,
        "log_config": None,
        "server_header": False,
        "proxy_headers": False,
        "h11_max_incomplete_event_size": MAX_HEADER_BYTES,
        "timeout_keep_alive": IDLE_SECONDS,
        "timeout_graceful_shutdown": ends_within_seconds,
        "backlog": MAX_CONNECTIONS,
    }
