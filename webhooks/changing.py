"""What is changed of an endpoint that there is: where it is called, about what, and what it is for.

Its accounts are not: whose data it gets, and who may change it, stay as they were when it was added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webhooks.endpoint_errors import HasSecretUrl, no_endpoint
from webhooks.endpoints import connected
from webhooks.event_types import EventType
from webhooks.kinds import Kind
from webhooks.new_endpoint import checked_target, refuse_uncalled

_READ = "SELECT kind, accounts FROM webhook_endpoints WHERE endpoint = %s FOR NO KEY UPDATE"
_CHANGE = """
UPDATE webhook_endpoints SET
    url = coalesce(%(url)s, url), events = coalesce(%(events)s, events),
    note = CASE WHEN %(changes_note)s THEN nullif(%(note)s, '') ELSE note END, changed_by = %(by)s
WHERE endpoint = %(endpoint)s
"""


@dataclass(frozen=True)
class Change:
    """None: as it was. An empty `note` removes it."""

    url: str | None = None
    events: Sequence[EventType] | None = None
    note: str | None = None


def change(postgres_url: str, endpoint: str, by: str, wanted: Change, *, allows_private: bool = False) -> None:
    """Change an endpoint; what waits for it is sent to its new URL.

    Raises EndpointRefused for what it must not be, HasSecretUrl for a URL of Slack, and CannotRun.
    """
    with connected(postgres_url) as database:
        row = database.execute(_READ, [endpoint]).fetchone()
        if row is None:
            raise no_endpoint(endpoint)
        kind, url = Kind(row["kind"]), None
        if wanted.url is not None:
            if kind is Kind.SLACK:
                raise HasSecretUrl(
                    f"The URL of {endpoint} is its secret: add an endpoint with the new one, and remove this."
                )
            url = checked_target(kind, wanted.url, allows_private=allows_private)
        if wanted.events is not None:
            refuse_uncalled(wanted.events, row["accounts"])
        values = {
            "endpoint": endpoint,
            "by": by,
            "url": url,
            "events": None if wanted.events is None else [str(event) for event in wanted.events],
            "changes_note": wanted.note is not None,
            "note": wanted.note,
        }
        database.execute(_CHANGE, values)
