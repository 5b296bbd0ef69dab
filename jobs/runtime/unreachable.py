"""Messages about a database or a Kafka that is unreachable: which one, why, and what to do. Never a password.

Each sentence holds on a laptop and on a cluster, because the code that writes it may not know where it runs.
"""

from __future__ import annotations

import re

import psycopg
from confluent_kafka import KafkaError, KafkaException
from psycopg.conninfo import conninfo_to_dict

from jobs.runtime.postgres.unavailable import WRONG_HERE_OR_THERE, database_is_unavailable

NO_ADDRESS = (
    "is no address of a database: it is written postgresql://user:password@host:5432/database, and in user and "
    "password @ is %40, / is %2F, : is %3A and % is %25"
)
NOISE = re.compile(r"\x1b\[[0-9;]*m|↳|Debug source:.*", re.DOTALL)
MAX_MESSAGE = 300
_WHERE = re.compile(r"connection to server at .*? failed: ")


def place(url: str) -> str | None:
    """host:port/database of an address of Postgres; None for what is no address, or has part of a password there."""
    try:
        parameters = conninfo_to_dict(url)
    except (psycopg.ProgrammingError, UnicodeDecodeError):
        return None
    host, port, name = (str(parameters.get(key) or "") for key in ("host", "port", "dbname"))
    if "@" in host + name or not set(port) <= set("0123456789,"):
        return None
    return f"{host or parameters.get('hostaddr') or 'localhost'}:{port or 5432}/{name}"


def database_sentence(error: BaseException, url: str) -> str | None:
    """A sentence for an error after which the database cannot be queried; None for any other."""
    cause = getattr(error, "orig", error)  # SQLAlchemy's errors hold the driver's
    if (where := place(url)) is None:
        # libpq quotes what it cannot read, and that may be the password.
        return f"WEIR_POSTGRES_URL {NO_ADDRESS}."
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) and database_is_unavailable(cause):
        return f"The database at {where} does not answer ({_reason(cause)}). {_advice('WEIR_POSTGRES_URL')}"
    if isinstance(cause, psycopg.OperationalError | psycopg.errors.InvalidCatalogName):
        return f"The database at {where} refuses ({_reason(cause)}): {WRONG_HERE_OR_THERE}."
    return None


def kafka_sentence(error: KafkaException, bootstrap: str, connection_errors: str = "") -> str:
    """A sentence for an admin client's error; `connection_errors`: those of its connections to `bootstrap`."""
    problem: KafkaError = error.args[0]
    if problem.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return f"Kafka at {bootstrap} lacks a topic: `weir topics` makes those that Weir needs."
    reason = connection_errors or problem.str()
    return f"Kafka at {bootstrap} does not answer ({reason}). {_advice('WEIR_KAFKA_BOOTSTRAP')}"


def store_sentence(error: Exception) -> str | None:
    """For an error of the library that reads and writes tables; None for one of a file of this machine."""
    if isinstance(error, OSError) and error.errno is not None:
        return None
    return (
        f"The tables cannot be read or written ({in_a_line(str(error))}). See that WEIR_TABLES names them, that their "
        "store can be reached from here, and that the AWS_* or AZURE_* variables are right."
    )


def conflict_sentence(error: Exception) -> str:
    """For a commit that another writer's commit came before."""
    return f"Another program changed the tables at the same moment ({in_a_line(str(error))}). Run the command again."


def in_a_line(text: str) -> str:
    """The beginning of a library's message, as one line."""
    return " ".join(NOISE.sub(" ", text).split())[:MAX_MESSAGE]


def _reason(error: psycopg.Error) -> str:
    first = str(error).partition("\n")[0].removeprefix("connection failed: ")
    return _WHERE.sub("", first) or type(error).__name__


def _advice(variable: str) -> str:
    return (
        "On a laptop `weir status` shows whether it runs; `weir down`, then `weir up`, restart it. On a cluster, "
        f"or with a server of your own, see that it runs, that {variable} names it, that it can be reached from here, "
        "and that the credentials are right."
    )
