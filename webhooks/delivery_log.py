"""The delivery log: every attempt of one delivery, and what came of it."""

from __future__ import annotations

from typing import Any

from webhooks.endpoint_errors import NoDelivery
from webhooks.endpoints import ALL_DELIVERIES, accounts_of, connected

COLUMNS = ("attempted_at", "status", "error", "duration_ms")
_EXISTS = f"SELECT FROM ({ALL_DELIVERIES}) AS d WHERE (endpoint, number) = (%(endpoint)s, %(number)s)"
_ATTEMPTS = """
SELECT attempted_at, status, error, duration_ms FROM webhook_attempts
WHERE (number, endpoint) = (%(number)s, %(endpoint)s) ORDER BY attempted_at
"""


def attempts(postgres_url: str, endpoint: str, number: int) -> list[dict[str, Any]]:
    """Rows with the keys COLUMNS, the first attempt first: a `status` of HTTP or SMTP, else the `error`.

    Raises NoEndpoint, NoDelivery and CannotRun.
    """
    accounts_of(postgres_url, endpoint)
    with connected(postgres_url) as database:
        which = {"endpoint": endpoint, "number": number}
        if database.execute(_EXISTS, which).fetchone() is None:
            raise NoDelivery(f"{number} was not for {endpoint}: `weir webhooks deliveries {endpoint}` lists what was.")
        return database.execute(_ATTEMPTS, which).fetchall()
