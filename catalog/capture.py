"""The configuration of Debezium's connector for Postgres: which tables it captures, in what form, and from where."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from deployment.errors import CannotRun
from jobs.streams import HEARTBEATS_TOPIC, CatalogTopic

CONNECTOR = "weir-catalog"
PUBLICATION = "weir_catalog"
PASSWORD_VARIABLE = "WEIR_CAPTURE_PASSWORD"
"""Of the worker's environment: what the connector is configured with is kept in a topic, in the clear."""

BEAT_MS = 2_000
"""How often capture reports up to which commit it has everything, also while nothing changes."""

RETRY_MS = 1_000

TABLES = (CatalogTopic.PLANS, CatalogTopic.PRICES, CatalogTopic.ACCOUNTS, CatalogTopic.DECISIONS)
"""In the order in which a snapshot reads them: an account's usage has a price as soon as it has a contract."""

_HEARTBEATS, _SERVER = HEARTBEATS_TOPIC.split(".")


def slot_name(database: str) -> str:
    """The replication slot of a database; a server's databases share one space of names."""
    return f"weir_catalog_{re.sub('[^a-z0-9_]', '_', database.lower())}"[:63]


def connector(postgres_url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The connector's configuration. Its password is not in it: the worker reads it from PASSWORD_VARIABLE.

    `environment` may have PGSSLMODE and PGSSLROOTCERT, which libpq reads itself where the address says nothing. Raises
    CannotRun for an address that names no server or no user.
    """
    place = _place(postgres_url)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        **_database(place, environment),
        "plugin.name": "pgoutput",
        "slot.name": slot_name(place["dbname"]),
        "slot.max.retries": "60",
        "slot.retry.delay.ms": str(RETRY_MS),
        "retriable.restart.connector.wait.ms": str(RETRY_MS),
        # Migrations make it: who may create publications need not be who captures.
        "publication.name": PUBLICATION,
        "publication.autocreate.mode": "disabled",
        "table.include.list": ",".join(TABLES),
        # A slot that was lost, or whose log is gone, is followed by a new snapshot instead of an error.
        "snapshot.mode": "when_needed",
        "decimal.handling.mode": "string",
        "tombstones.on.delete": "true",
        "heartbeat.interval.ms": str(BEAT_MS),
        "heartbeat.action.query": "SELECT catalog.beat()",
        "topic.prefix": _SERVER,
        "topic.heartbeat.prefix": _HEARTBEATS,
        "transforms": "route",
        "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.route.regex": rf"{_SERVER}\.(catalog\..+)",
        "transforms.route.replacement": "$1",
    }


def password(postgres_url: str) -> str:
    """The value of PASSWORD_VARIABLE; empty where the address has no password."""
    return str(_place(postgres_url).get("password", ""))


def _database(place: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    named = {"sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT"}
    place = {**{name: environment[variable] for name, variable in named.items() if environment.get(variable)}, **place}
    settings = {
        "database.hostname": place["host"],
        "database.port": place.get("port", "5432"),
        "database.dbname": place["dbname"],
        "database.user": place["user"],
        "database.password": f"${{env:{PASSWORD_VARIABLE}}}",
        "database.sslmode": place.get("sslmode", "prefer"),
    }
    certificates = {"sslrootcert": "database.sslrootcert", "sslcert": "database.sslcert", "sslkey": "database.sslkey"}
    return settings | {ours: place[theirs] for theirs, ours in certificates.items() if theirs in place}


def _place(postgres_url: str) -> dict[str, Any]:
    place = {name: str(value) for name, value in conninfo_to_dict(postgres_url).items() if value is not None}
    if missing := [name for name in ("host", "user") if not place.get(name)]:
        raise CannotRun(f"The database's address has no {' and no '.join(missing)}, which capturing its changes needs.")
    return {**place, "dbname": place.get("dbname") or place["user"]}
