"""Signatures: the verifier of `standardwebhooks` takes `v1`, and a public key alone takes `v1a`."""

from __future__ import annotations

import base64
import json
import time

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from webhooks.signing import PUBLIC, Signature, kind_of, new_secret, receivers_part, signed_headers

DATA = st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.none()), max_size=4)
ID = "evt_0123456789abcdef0123456789abcdef"


def verify_asymmetric(public: str, headers: dict[str, str], body: bytes) -> None:
    """By the specification, and by no code of ours. Raises InvalidSignature."""
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public.removeprefix(PUBLIC)))
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    for signature in headers["webhook-signature"].split(" "):
        version, _, text = signature.partition(",")
        if version == "v1a":
            return key.verify(base64.b64decode(text), content)
    raise InvalidSignature


@given(DATA)
def test_the_reference_verifier_takes_whatever_is_signed_by_a_shared_secret(data: dict[str, object]) -> None:
    secret, body = new_secret(Signature.V1), json.dumps(data).encode()
    headers = signed_headers(ID, int(time.time()), body, [secret])
    assert Webhook(receivers_part(secret)).verify(body, headers) == data


@given(DATA)
def test_a_public_key_verifies_what_the_private_key_signed(data: dict[str, object]) -> None:
    secret, body = new_secret(Signature.V1A), json.dumps(data).encode()
    headers = signed_headers(ID, 1_700_000_000, body, [secret])
    verify_asymmetric(receivers_part(secret), headers, body)
    with pytest.raises(InvalidSignature):
        verify_asymmetric(receivers_part(secret), headers, body + b" ")
    with pytest.raises(InvalidSignature):
        verify_asymmetric(receivers_part(secret), {**headers, "webhook-timestamp": "1700000001"}, body)


def test_while_a_secret_is_rotated_both_receivers_verify_and_a_third_does_not() -> None:
    old, new, other = (new_secret(Signature.V1) for _ in range(3))
    headers = signed_headers(ID, int(time.time()), b"{}", [new, old])
    for secret in (old, new):
        Webhook(secret).verify(b"{}", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(b"{}", headers)


def test_a_shared_secret_has_as_many_bytes_as_the_specification_allows() -> None:
    assert 24 <= len(base64.b64decode(new_secret(Signature.V1).removeprefix("whsec_"))) <= 64


def test_what_a_receiver_is_given_of_a_key_pair_is_not_what_signs() -> None:
    secret = new_secret(Signature.V1A)
    assert receivers_part(secret).startswith("whpk_")
    assert secret.removeprefix("whsk_")[:40] not in receivers_part(secret)


def test_nothing_is_sent_unsigned() -> None:
    with pytest.raises(ValueError, match="no secret"):
        signed_headers(ID, 1, b"{}", [])
    with pytest.raises(ValueError, match="begins with"):
        kind_of("weir_secret")
