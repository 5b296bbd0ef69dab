"""Portal tokens: `weir_portal_<payload>.<signature>`, which read one account's usage for a while.

The payload says what a token may read and which key made it; the signature is HMAC-SHA256 by the digest of that key.
The table of keys is enough to verify a token, so none is stored, and all end with their key. Its id is a digest of the
payload: two that were made in one second, and say the same, are one token.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from metering.api_keys import ApiKey, Scope

PREFIX = "weir_portal_"
_CONTEXT = b"weir portal token 1."
"""Before what is signed: a signature of anything else is none of a token."""
_FORM = re.compile(r"weir_portal_([A-Za-z0-9_-]{1,6000})\.([0-9a-f]{64})")
_KINDS = {"key": str, "account": str, "expires": int, "meters": list}
_GENERATION = "generation"
"""Only where it is not 0, so that earlier releases take all other tokens."""
_END_OF_TIME = 253_402_300_799


@dataclass(frozen=True)
class PortalToken:
    """What a token says. `meters`: those that it may read; empty: all, and bills. `expires_at` is a whole second.

    `generation`: how often the tokens of the account had been invalidated when it was made.
    """

    key_id: str
    account: str
    expires_at: datetime
    meters: tuple[str, ...] = ()
    generation: int = 0

    @property
    def id(self) -> str:
        """By which one token is invalidated."""
        return sha256(self._payload.encode()).hexdigest()[:32]

    def text(self, key: ApiKey) -> str:
        """The token as the key with this id makes it."""
        return f"{PREFIX}{self._payload}.{_signature(key, self._payload)}"

    @property
    def _payload(self) -> str:
        members = {"key": self.key_id, "account": self.account, "expires": int(self.expires_at.timestamp())}
        later = {_GENERATION: self.generation} if self.generation else {}
        document = json.dumps({**members, "meters": self.meters, **later}, separators=(",", ":"))
        return base64.urlsafe_b64encode(document.encode()).decode().rstrip("=")

    def reading(self, maker: ApiKey) -> ApiKey:
        """The key that the token stands for: of no scope, of one account, with the maker's rate limits for each."""
        return replace(
            maker,
            id=f"{maker.id}/{self.account}",
            digest=b"",
            scopes=frozenset(),
            accounts=frozenset((self.account,)),
            expires_at=self.expires_at,
            made_by=maker.id,
            meters=frozenset(self.meters),
            token_id=self.id,
            generation=self.generation,
        )


def token_of(text: str) -> PortalToken | None:
    """What a text says that has the form of a token; whether it is one, `is_signed` knows."""
    found = _FORM.fullmatch(text)
    members = None if found is None else _document(found[1])
    if members is None:
        return None
    generation = members.pop(_GENERATION, 0)
    is_known = members.keys() == _KINDS.keys() and all(isinstance(members[name], kind) for name, kind in _KINDS.items())
    if not is_known or type(generation) is not int or not all(isinstance(meter, str) for meter in members["meters"]):
        return None
    if not 0 <= members["expires"] <= _END_OF_TIME:
        return None
    expires_at = datetime.fromtimestamp(members["expires"], UTC)
    return PortalToken(members["key"], members["account"], expires_at, tuple(members["meters"]), generation)


def is_signed(text: str, maker: ApiKey) -> bool:
    """Whether this key has made a token, in constant time."""
    payload, _, signature = text.removeprefix(PREFIX).rpartition(".")
    return hmac.compare_digest(_signature(maker, payload), signature)


def may_make(key: ApiKey, account: str) -> bool:
    """Whether a key may make tokens for an account."""
    return Scope.PORTAL in key.scopes and (not key.accounts or account in key.accounts)


def _signature(key: ApiKey, payload: str) -> str:
    return hmac.new(key.digest, _CONTEXT + payload.encode(), sha256).hexdigest()


def _document(payload: str) -> dict[str, Any] | None:
    try:
        found = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
