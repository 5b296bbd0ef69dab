"""What a command says of a database that answers, and is not Weir's, or not for us."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from cli.reading import read_only
from cli.traffic import policy_of
from deployment.errors import CannotRun
from deployment.stack import Deployment
from jobs.queries.reading import select


def named(url: str, database: str) -> str:
    return urlsplit(url)._replace(path=f"/{database}").geturl()


def listing(deployment: Deployment) -> None:
    with read_only(deployment.postgres_url) as database:
        list(select(database, "SELECT * FROM usage_windows", {}))


@pytest.mark.parametrize("command", [listing, policy_of])
def test_a_database_without_weirs_schema_is_reported_with_the_command_to_migrate(
    postgres_url: str, command: Callable[[Deployment], object]
) -> None:
    empty = named(postgres_url, "postgres")
    with pytest.raises(CannotRun, match=r"does not have this version's schema .*python -m jobs migrate"):
        command(Deployment(postgres_url=empty))


@pytest.mark.parametrize("command", [listing, policy_of])
def test_a_missing_database_is_a_configuration_error_not_an_outage(
    postgres_url: str, command: Callable[[Deployment], object]
) -> None:
    with pytest.raises(CannotRun, match=r'/none refuses \(FATAL:  database "none" does not exist\): see that'):
        command(Deployment(postgres_url=named(postgres_url, "none")))
