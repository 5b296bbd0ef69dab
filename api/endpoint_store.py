"""`webhooks.endpoints` for the API: it blocks, so it runs in threads of its own, few at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TypeVar

import structlog
from psycopg.conninfo import make_conninfo

from api.limited_threads import LimitedThreads
from api.problems import Problem, unavailable
from api.reader import ANSWER_TIMEOUT_SECONDS, STATEMENT_TIMEOUT_SECONDS
from deployment.asking import NotOwner
from deployment.errors import CannotRun
from jobs.runtime.postgres.address import options_of
from jobs.runtime.postgres.session import CONNECT_TIMEOUT_SECONDS, TCP_TIMEOUT_MS
from webhooks.endpoint_errors import (
    HasSecretUrl,
    NoDelivery,
    NoEndpoint,
    SignsNothing,
    TooManyEndpoints,
    TooManySecrets,
)

log = structlog.get_logger()

MAX_RUNNING, MAX_WAITING = 2, 8
NO_ENDPOINT = "No endpoint of this name is of the key's accounts: GET /v1/webhook-endpoints lists them."
_CONFLICTS = (SignsNothing, HasSecretUrl, TooManyEndpoints, TooManySecrets)
R = TypeVar("R")


class EndpointStore:
    """Endpoints in Postgres, as the login of the API may change them: each call has a session of its own."""

    def __init__(self, postgres_url: str) -> None:
        self._postgres_url = make_conninfo(
            postgres_url,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            tcp_user_timeout=TCP_TIMEOUT_MS,
            options=f"{options_of(postgres_url)} -c statement_timeout={STATEMENT_TIMEOUT_SECONDS}s",
        )
        self._threads = LimitedThreads("endpoints", MAX_RUNNING, MAX_WAITING, ANSWER_TIMEOUT_SECONDS)

    async def run(self, call: Callable[[str], R]) -> R:
        """What `call` returns for the address of the database. What has begun goes on also after the time limit.

        Raises Problem: 404 without such an endpoint or delivery, 409 where it may not be changed so, 501 where the
        login may not, 503; and what else `call` raises.
        """
        try:
            return await self._threads.run(
                partial(call, self._postgres_url),
                too_many="Too many endpoints are changed at once: ask again later.",
                too_late="look again later",
            )
        except NoEndpoint:
            raise Problem(HTTPStatus.NOT_FOUND, NO_ENDPOINT) from None
        except NoDelivery:
            raise Problem(HTTPStatus.NOT_FOUND, "No delivery of this number was for the endpoint.") from None
        except _CONFLICTS as refused:
            raise Problem(HTTPStatus.CONFLICT, str(refused)) from None
        except NotOwner as refused:
            log.warning("the login of the API may not manage endpoints", reason=str(refused))
            detail = "The API has a database login that may not manage endpoints: `weir webhooks` does."
            raise Problem(HTTPStatus.NOT_IMPLEMENTED, detail) from None
        except CannotRun as error:
            log.warning("endpoints cannot be read or changed", reason=str(error))
            raise unavailable("The database does not answer: ask again later. The API's log says why.") from None

    def close(self) -> None:
        """Take no further calls."""
        self._threads.close()
