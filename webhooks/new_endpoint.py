"""What an endpoint may be, checked before it is stored: by `weir webhooks` and by the API alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from webhooks.addresses import AddressRefused, checked_url
from webhooks.event_types import OF_NO_ACCOUNT, EventType
from webhooks.kinds import Kind
from webhooks.mail import is_mail_address
from webhooks.signing import Signature
from webhooks.slack import is_of_slack


class EndpointRefused(Exception):
    """An endpoint that is not stored: `field` of NewEndpoint is wrong, and the sentence says what it must be."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


@dataclass(frozen=True)
class NewEndpoint:
    """An endpoint as somebody asks for it. No `accounts`: the events of all."""

    url: str
    kind: Kind = Kind.WEBHOOK
    events: Sequence[EventType] = tuple(EventType)
    accounts: Sequence[str] = ()
    note: str | None = None
    signature: Signature = Signature.V1

    def checked(self, *, allows_private: bool = False) -> NewEndpoint:
        """The same with its URL as it is stored. Raises EndpointRefused."""
        refuse_uncalled(self.events, self.accounts)
        if self.signature is not Signature.V1 and self.kind is not Kind.WEBHOOK:
            raise EndpointRefused("signature", f"It is for webhooks: calls of kind {self.kind} are not signed.")
        return replace(self, url=checked_target(self.kind, self.url, allows_private=allows_private))


def refuse_uncalled(events: Sequence[EventType], accounts: Sequence[str]) -> None:
    """Raises EndpointRefused for an endpoint of some accounts whose events are all of none."""
    if not events:
        raise EndpointRefused("events", "There must be one at least.")
    if accounts and OF_NO_ACCOUNT.issuperset(events):
        raise EndpointRefused("accounts", "These events are of no account: name none, or nothing is ever sent.")


def checked_target(kind: Kind, url: str, *, allows_private: bool = False) -> str:
    """Where an endpoint of a kind is called. Raises EndpointRefused for what could never be called."""
    if kind is Kind.MAIL:
        if not is_mail_address(url):
            raise EndpointRefused("url", f"{url!r} must be one address of mail, such as ops@example.com.")
        return url
    try:
        checked = str(checked_url(url, allows_private=allows_private))
    except AddressRefused as problem:
        raise EndpointRefused("url", f"{problem}.") from problem
    if kind is Kind.WEBHOOK and is_of_slack(checked):
        raise EndpointRefused(
            "kind", "It must be slack for this URL: Slack takes messages alone, and its URL is kept secret."
        )
    return checked
