"""The process: uvicorn with limits for slow clients, and the application's connections to Kafka and Postgres."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from api.app import application
from api.bearer_tokens import TokenIssuer
from api.database_poll import DatabasePoll
from api.events import ACCOUNT_ATTRIBUTE, Services
from api.ingestion_lag import MAX_LAG_SECONDS
from api.issuer_keys import IssuerKeys
from api.producer import AcknowledgedProducer
from api.reader import AccountReader
from api.tables import StoredTables
from api.validation import Validator
from api.window_stream import WindowStreams
from deployment.errors import CannotRun
from deployment.kafka_client import kafka_client
from deployment.stack import KAFKA_VARIABLE, POSTGRES_VARIABLE, TABLES_VARIABLE, postgres_url_of
from jobs.runtime.clock import MachineClock
from metering.api_keys import RateLimits
from monitoring.metrics import ApiRoute

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
MAX_CONNECTIONS = 2_000
MAX_HEADER_BYTES = 64 << 10
REQUEST_WITHIN_SECONDS = 10.0
"""Of a new connection, until its first request line and headers are there."""
READ_WITHIN_SECONDS = 30.0
"""How long a client may take nothing of what is ready for it; then its connection ends, with what was left."""
IDLE_SECONDS = 30
SWITCH_SECONDS = 0.001
"""Python's default is five times that. The validator's thread hands over to the loop some fifty times in a call, and
waits so long each time that it wants to go on while the loop is busy."""
ENDS_WITHIN_SECONDS = 20


class HeadTimeoutProtocol(H11Protocol):
    """Ends a connection on which no whole request head came in time, or whose client does not read.

    Uvicorn itself would wait for ever; also a connection that is closed waits until its client has read the rest.
    """

    _head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
            return
        self._head = self.loop.call_later(REQUEST_WITHIN_SECONDS, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Bytes have come; those of a request's body have their own limit (`events.BODY_WITHIN_SECONDS`)."""
        if self._head is None and not self._is_answering:
            self._head = self.loop.call_later(REQUEST_WITHIN_SECONDS, self._give_up)
        super().data_received(data)
        if self._head is not None and self._is_answering:
            self._head.cancel()
            self._head = None

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        for timer in (self._head, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More is ready for the client than it takes."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """It has taken most of that."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def shutdown(self) -> None:
        """The server stops: a stream, which would never end, ends, and its client goes on at another server."""
        super().shutdown()
        if self._is_answering and self.cycle.scope["path"] == ApiRoute.WINDOW_STREAM:
            self.transport.close()

    def _expect_reading(self) -> None:
        size_bytes = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(READ_WITHIN_SECONDS, self._end_unread, size_bytes)

    def _end_unread(self, before_bytes: int) -> None:
        if self.transport.get_write_buffer_size() >= before_bytes:
            self.transport.abort()
        else:
            self._expect_reading()

    def _give_up(self) -> None:
        self._head = None
        if not self.transport.is_closing():
            self.transport.close()


def serve(environment: Mapping[str, str], host: str, port: int, server_name: str) -> None:
    """Serve until SIGTERM or SIGINT. Raises CannotRun where the environment lacks an address."""
    sys.setswitchinterval(SWITCH_SECONDS)
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
    postgres_url, tables = postgres_url_of(environment), environment.get(TABLES_VARIABLE)
    kafka = kafka_client(environment[KAFKA_VARIABLE])
    database = DatabasePoll(postgres_url, clock, validator.use)
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


def settings(host: str, port: int) -> dict[str, Any]:
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
        "timeout_graceful_shutdown": ENDS_WITHIN_SECONDS,
        "backlog": MAX_CONNECTIONS,
    }
