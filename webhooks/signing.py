"""Signatures of Standard Webhooks 1.0: `v1` by HMAC-SHA256 and a shared secret, `v1a` by an ed25519 key pair."""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Sequence
from enum import StrEnum

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SYMMETRIC, PRIVATE, PUBLIC = "whsec_", "whsk_", "whpk_"
SECRET_BYTES = 32
"""Of a shared secret; the specification allows 24 to 64."""
SEED_BYTES = 32
"""Of an ed25519 key. A private key is kept as seed and public key, 64 bytes, as other implementations do."""


class Signature(StrEnum):
    """How the calls of an endpoint are signed."""

    V1 = "v1"
    V1A = "v1a"


def new_secret(signature: Signature) -> str:
    """What calls will be signed with: `whsec_…`, or a private key `whsk_…`."""
    if signature is Signature.V1:
        return SYMMETRIC + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
    key = Ed25519PrivateKey.generate()
    return PRIVATE + base64.b64encode(key.private_bytes_raw() + key.public_key().public_bytes_raw()).decode()


def kind_of(secret: str) -> Signature:
    """How a secret signs. Raises ValueError for what is no secret of either kind."""
    if secret.startswith(SYMMETRIC):
        return Signature.V1
    if secret.startswith(PRIVATE):
        return Signature.V1A
    raise ValueError(f"a secret begins with {SYMMETRIC} or {PRIVATE}")


def receivers_part(secret: str) -> str:
    """What the receiver verifies with: the shared secret itself, or the public key of a pair."""
    if kind_of(secret) is Signature.V1:
        return secret
    return PUBLIC + base64.b64encode(_key(secret).public_key().public_bytes_raw()).decode()


def signed_headers(message_id: str, timestamp: int, body: bytes, of: Sequence[str]) -> dict[str, str]:
    """The three headers of a call: `timestamp` in seconds of Unix, one signature for each secret in `of`.

    Raises ValueError without a secret: nothing is sent unsigned.
    """
    if not of:
        raise ValueError("there is no secret that has not expired")
    content = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(_signature(secret, content) for secret in of),
    }


def _signature(secret: str, content: bytes) -> str:
    kind = kind_of(secret)
    if kind is Signature.V1:
        signed = hmac.digest(base64.b64decode(secret.removeprefix(SYMMETRIC)), content, "sha256")
    else:
        signed = _key(secret).sign(content)
    return f"{kind},{base64.b64encode(signed).decode()}"


def _key(secret: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(base64.b64decode(secret.removeprefix(PRIVATE))[:SEED_BYTES])
