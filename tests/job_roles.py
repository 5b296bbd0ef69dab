"""Tests write to Postgres as drivers do whose administrator gave each application a role of its own."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.job_roles import ROLES
from jobs.runtime.postgres.ownership import Ownership

PASSWORD = "of-a-job"
_taken = Ownership.take
_servers: set[str] = set()
"""Ports of servers on which the roles were made."""


def make_job_roles(url: str) -> None:
    """As docs/how-to/database-roles.md has an administrator do it."""
    with psycopg.connect(url, autocommit=True) as server:
        for role in ROLES:
            server.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), PASSWORD))
    _servers.add(str(conninfo_to_dict(url)["port"]))


def url_of(url: str, role: str) -> str:
    """The same database, for that role."""
    return in_schema(make_conninfo(url, user=role, password=PASSWORD))


def take_as_the_role(job: str, postgres_url: str, *arguments: Any, **options: Any) -> Ownership:
    """`Ownership.take` as the job's role, where that was made and the address is the owner's; a rebuild is not it."""
    role, place = f"weir_{job}", conninfo_to_dict(postgres_url)
    is_owners = place.get("user") == "weir" and str(place.get("port")) in _servers
    if role in ROLES and is_owners and not options.get("is_alone"):
        postgres_url = url_of(postgres_url, role)
    return _taken(job, postgres_url, *arguments, **options)
