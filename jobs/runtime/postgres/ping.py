"""Whether a Postgres that refused a connection is absent, running, or only starting or stopping, in any language.

libpq gives connection errors no code, only the server's text. Its ping reads the code: it distinguishes a server that
accepts no sessions yet or any more (57P03) from one that accepts them, even if none is free.
"""

from __future__ import annotations

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, Ping

PING_SECONDS = 2


def starts_or_stops(error: psycopg.Error) -> bool:
    """Whether the server that answered `error` accepts no sessions yet, or any more; False for other errors."""
    return _ping_after(error) == Ping.REJECT


def is_there(error: psycopg.Error) -> bool:
    """Whether the server that could not be connected to answers at all."""
    return _ping_after(error) in (Ping.OK, Ping.REJECT)


def _ping_after(error: psycopg.Error) -> int:
    if error.pgconn is None or isinstance(error, psycopg.errors.ConnectionTimeout):
        # libpq holds Python's lock while it waits: a server that was just silent is not asked again.
        return Ping.NO_RESPONSE
    address = {option.keyword.decode(): option.val.decode() for option in error.pgconn.info if option.val}
    address["connect_timeout"] = str(PING_SECONDS)
    return PGconn.ping(make_conninfo("", **address).encode())
