"""One attempt of a delivery, by the kind of its endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from webhooks.kinds import Kind
from webhooks.outbox import Due
from webhooks.outcomes import Attempt
from webhooks.signing import signed_headers
from webhooks.slack import slack_message, without_url

Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[Attempt]]
Mail = Callable[[str, bytes, str, datetime], Awaitable[Attempt]]


@dataclass(frozen=True)
class Delivering:
    """Delivers by `post` (webhooks), and by `post_to_slack`, which also gives what was answered, and by `mail`."""

    post: Post
    post_to_slack: Post
    mail: Mail

    async def __call__(self, due: Due, at: datetime) -> Attempt:
        """An attempt that begins at `at`. Raises nothing for what the receiver does."""
        if due.lane.kind is Kind.SLACK:
            return await self._to_slack(due)
        if due.lane.kind is Kind.MAIL:
            return await self.mail(due.event_id, due.body, due.url, at)
        try:
            headers = signed_headers(due.event_id, int(at.timestamp()), due.body, due.secrets)
        except ValueError as problem:
            return Attempt(error=str(problem))
        return await self.post(due.url, due.body, headers)

    async def _to_slack(self, due: Due) -> Attempt:
        if not due.secrets:
            return Attempt(error="its URL is not stored")
        url = due.secrets[0]
        attempt = await self.post_to_slack(url, slack_message(due.event_id, due.body), {})
        # The log of attempts is for more people than the URL.
        return replace(attempt, error=attempt.error and without_url(attempt.error, url))
