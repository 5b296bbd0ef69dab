"""What is changed of an endpoint that there is: where it is called, about what, what it is for, and whether at all.

Its accounts are not: whose data it gets, and who may change it, stay as they were when it was added.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from webhooks.endpoint_errors import HasSecretUrl, IsDisabled, no_endpoint
from webhooks.endpoints import AUTHOR, connected, disable_within, enable_within
from webhooks.event_types import EventType
from webhooks.kinds import Kind
from webhooks.new_endpoint import checked_target, refuse_uncalled

_READ = "SELECT kind, accounts FROM webhook_endpoints WHERE endpoint = %s FOR NO KEY UPDATE"
_CHANGE = f"""
UPDATE webhook_endpoints SET
    url = coalesce(%(url)s, url), events = coalesce(%(events)s, events),
    note = CASE WHEN %(changes_note)s THEN nullif(%(note)s, '') ELSE note END, changed_by = {AUTHOR}
WHERE endpoint = %(endpoint)s
"""


class Switch(StrEnum):
    """Whether an endpoint is called."""

    ENABLED = "enabled"
    DISABLED = "disabled"


@dataclass(frozen=True)
class Change:
    """None: as it was. An empty `note` removes it. `reason`: why it is disabled."""

    url: str | None = None
    events: Sequence[EventType] | None = None
    note: str | None = None
    state: Switch | None = None
    reason: str = ""

    @property
    def has_values(self) -> bool:
        """Whether more is changed than its state."""
        return (self.url, self.events, self.note) != (None, None, None)


def change(postgres_url: str, endpoint: str, by: str, wanted: Change, *, allows_private: bool = False) -> None:
    """Change an endpoint, all of it or nothing; what waits for it is sent to its new URL.

    Raises EndpointRefused for what it must not be, HasSecretUrl for a URL of Slack, and CannotRun.
    """
    with connected(postgres_url) as database:
        if wanted.state is Switch.ENABLED:
            enable_within(database, endpoint, by)
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
        if wanted.has_values:
            database.execute(_CHANGE, values)
        if wanted.state is Switch.DISABLED:
            with suppress(IsDisabled):
                disable_within(database, endpoint, by, wanted.reason)
