"""Bearer tokens of an identity provider (OpenID Connect): what one allows, if the provider has signed it.

Only signatures by the provider's public keys count: an algorithm with a shared secret, or none, is refused before any
key is looked at. Keys that a token itself names (`jku`, `x5u`, `jwk`) are never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from metering.account_claims import accounts_of
from metering.api_keys import ApiKey, Scope

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
_KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC"}
"""By family of algorithms."""
MAX_TOKEN_BYTES = 16 << 10
MAX_CLOCK_SECONDS = 60
"""So far the provider's clock may be ahead of this one, or behind it."""
MAX_LIFETIME_SECONDS = 86_400
"""A token cannot be revoked: it holds until it expires. So one that holds for longer is refused."""
SCOPES = {f"weir:{scope.value}": scope for scope in (Scope.INGEST, Scope.READ)}
"""What the scopes of tokens are called. Portal tokens are signed by stored keys, so no token may make one."""
SOURCES_CLAIM = "weir_sources"
"""Patterns of the sources whose events the bearer may send; of any without it, as with `weir keys create`."""
MAX_NAME = 200
MAX_EPOCH_SECONDS = 10**11
"""Beyond the calendar, but comparable with any other instant."""


class BadToken(Exception):
    """The token is refused; the sentence says why, and nothing that is secret."""


@dataclass(frozen=True)
class TokenIssuer:
    """Whose tokens are taken."""

    issuer: str
    """As tokens have it in `iss`. Its description is below it, at `.well-known/openid-configuration`."""
    audience: str
    """What the tokens must be for (`aud`): the API, and not another program of the same provider."""
    accounts_claim: str = "weir_accounts"
    scopes_claim: str = "scope"

    def __post_init__(self) -> None:
        """Raises ValueError for an address whose answers anybody on the network could change."""
        refuse_unprotected(self.issuer)

    def key(self, text: str, keys: KeySet, now: datetime) -> ApiKey:
        """What the bearer of a token may do. Raises BadToken, and UnknownKeyError for a key that is not in `keys`."""
        claims = self._signed_claims(text, keys)
        expires_at = self._valid_until(claims, now.timestamp())
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 0 < len(subject) <= MAX_NAME:
            raise BadToken("it lacks a claim sub of at most 200 characters")
        accounts = accounts_of(claims.get(self.accounts_claim))
        if accounts == frozenset():
            raise BadToken(f"its claim {self.accounts_claim} names no account (a list, or * for all)")
        return ApiKey(
            id=f"{self.issuer}#{subject}",
            digest=b"",
            scopes=self._scopes(claims.get(self.scopes_claim)),
            accounts=accounts or frozenset(),
            sources=self._sources(claims.get(SOURCES_CLAIM)),
            expires_at=datetime.fromtimestamp(expires_at, UTC),
            issuer=self.issuer,
        )

    def _signed_claims(self, text: str, keys: KeySet) -> Mapping[str, Any]:
        if len(text) > MAX_TOKEN_BYTES:
            raise BadToken("it is longer than 16 KiB")
        try:
            header = jws.extract_compact(text.encode("ascii")).headers()
        except (JoseError, ValueError) as error:
            raise BadToken("it is no JSON Web Token") from error
        if header.get("alg") not in ALGORITHMS:
            raise BadToken(f"its algorithm is none of {', '.join(ALGORITHMS)}")
        if "crit" in header or "b64" in header:
            raise BadToken("it asks for extensions")
        key_id = header.get("kid")
        if not isinstance(key_id, str):
            raise BadToken("its header has no kid")
        found = [
            key
            for key in keys.keys
            if key.kid == key_id and key.get("use", "sig") == "sig" and key.get("alg", header["alg"]) == header["alg"]
        ]
        if not found:
            raise UnknownKeyError(key_id)
        # Keys of different types may have one `kid` (RFC 7517, 4.5).
        signing = next((key for key in found if key.key_type == _KEY_TYPES[header["alg"][:2]]), found[0])
        try:
            claims = jwt.decode(text, signing, algorithms=list(ALGORITHMS)).claims
        except (JoseError, ValueError, TypeError) as error:
            raise BadToken("the provider's key has not signed it") from error
        if claims.get("iss") != self.issuer:
            raise BadToken(f"it is not of {self.issuer}")
        audience = claims.get("aud")
        if self.audience not in (audience if isinstance(audience, list) else [audience]):
            raise BadToken(f"it is not for {self.audience} (aud)")
        return claims

    @staticmethod
    def _valid_until(claims: Mapping[str, Any], now: float) -> float:
        """When it ends, in seconds of the epoch. Raises BadToken."""
        instants = {name: claims.get(name) for name in ("exp", "iat", "nbf")}
        given = [at for at in instants.values() if at is not None]
        if not all(isinstance(at, int | float) and abs(at) < MAX_EPOCH_SECONDS for at in given):
            raise BadToken("exp, iat or nbf is no instant")
        expires, issued, begins = instants["exp"], instants["iat"], instants["nbf"]
        if expires is None or issued is None:
            raise BadToken("it lacks exp or iat")
        if not now < expires + MAX_CLOCK_SECONDS:
            raise BadToken("it has expired")
        if not max(issued, begins or issued) <= now + MAX_CLOCK_SECONDS:
            raise BadToken("it holds only later")
        if not expires - issued <= MAX_LIFETIME_SECONDS:
            raise BadToken("it holds for longer than a day")
        return float(expires) + MAX_CLOCK_SECONDS

    @staticmethod
    def _sources(claim: object) -> tuple[str, ...]:
        """Patterns of sources; () is all. Raises BadToken for a claim that names none: it is meant to limit."""
        if claim is None:
            return ()
        names = claim.split(",") if isinstance(claim, str) else claim if isinstance(claim, list) else []
        sources = tuple(name.strip() for name in names if isinstance(name, str) and name.strip())
        if not sources:
            raise BadToken(f"its claim {SOURCES_CLAIM} names no source")
        return sources

    @staticmethod
    def _scopes(claim: object) -> frozenset[Scope]:
        names = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
        return frozenset(SCOPES[name] for name in names if isinstance(name, str) and name in SCOPES)


class UnknownKeyError(Exception):
    """A token names a key that the provider has not published, or has published since."""


def refuse_unprotected(address: str) -> None:
    """Raises ValueError unless an address is https, or of this machine."""
    parts = urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost")):
        raise ValueError(f"{address} is not https, so anybody on the network could sign tokens")
