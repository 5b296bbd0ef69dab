"""The dashboard's own address of a test's database: that of the read-only role."""

from __future__ import annotations

from urllib.parse import urlsplit

from jobs.runtime.postgres.reader_role import ROLE
from jobs.runtime.postgres.schema import migrate

PASSWORD = "reads-only"


def reader_url(database: str) -> str:
    """Let the read-only role log in to `database` (the owner's address) and give its address."""
    migrate(database, PASSWORD)
    place = urlsplit(database)
    return place._replace(netloc=f"{ROLE}:{PASSWORD}@{place.hostname}:{place.port}").geturl()
