"""Asking a database or a Kafka from a `weir` command: what goes wrong is a sentence with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from deployment.errors import CannotRun
from deployment.kafka_client import kafka_client
from jobs.runtime.unreachable import database_sentence, kafka_sentence, place

NO_SCHEMA = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.InvalidSchemaName)


class NotOwner(CannotRun):
    """The role may not do this in the database."""


@contextmanager
def asking_database(url: str) -> Iterator[None]:
    """Raises CannotRun for a database that does not answer, does not let us in, or has not this version's schema."""
    try:
        yield
    except NO_SCHEMA as error:
        raise CannotRun(
            f"The database at {place(url)} does not have this version's schema ({first_line(error)}): `weir up` and "
            "`helm upgrade` bring it up to date, and `python -m jobs migrate` alone."
        ) from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise NotOwner(
            f"The database at {place(url)} refuses ({first_line(error)}): WEIR_POSTGRES_URL must name the role that "
            "owns Weir's tables."
        ) from None
    except Exception as error:
        is_of_database = isinstance(getattr(error, "orig", error), psycopg.Error)  # SQLAlchemy's hold the driver's
        if not is_of_database or (sentence := database_sentence(error, url)) is None:
            raise
        raise CannotRun(sentence) from None


@contextmanager
def asking_kafka(bootstrap: str) -> Iterator[AdminClient]:
    """An admin client for queries. Raises CannotRun for brokers that do not answer, or lack a topic."""
    errors: list[KafkaError] = []
    # Its own log repeats one line twenty times a second.
    admin = AdminClient({**kafka_client(bootstrap), "log_level": 0, "error_cb": errors.append})  # type: ignore[dict-item]
    try:
        yield admin
    except KafkaException as error:
        admin.poll(0)
        raise CannotRun(kafka_sentence(error, bootstrap, errors[0].str() if errors else "")) from None


def first_line(error: Exception) -> str:
    """What it says, without the statement and its place."""
    return str(error).partition("\n")[0]
