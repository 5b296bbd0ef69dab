"""Bearer tokens: whatever an attacker changes, a token is worth what the provider has signed, or nothing.

Real keys and signatures; the provider is a small HTTP server on this machine, with a clock that the test sets.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from api import issuer_keys
from api.bearer_tokens import (
    MAX_CLOCK_SECONDS,
    MAX_LIFETIME_SECONDS,
    SCOPES,
    BadToken,
    TokenIssuer,
    UnknownKeyError,
)
from api.issuer_keys import IssuerKeys
from api.problems import Problem
from api.server import issuer_in
from deployment.errors import CannotRun
from metering.api_keys import ApiKey, Scope
from tests.clocks import HandClock

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
ISSUER = TokenIssuer("https://login.example/realms/a", "weir-api")
SIGNING: dict[str, RSAKey | ECKey] = {
    "RS256": RSAKey.generate_key(2048, {"kid": "rsa"}),
    "ES256": ECKey.generate_key("P-256", {"kid": "ec"}),
}
STRANGER = RSAKey.generate_key(2048, {"kid": "rsa"})
PUBLISHED = {"keys": [key.as_dict(private=False) for key in SIGNING.values()]}
KEYS = KeySet.import_key_set(cast("Any", PUBLISHED))


def claims(**changed: Any) -> dict[str, Any]:
    at = NOW.timestamp()
    whole = {"iss": ISSUER.issuer, "aud": "weir-api", "sub": "gateway", "iat": at, "exp": at + 300}
    given = {**whole, "scope": "openid weir:read", "weir_accounts": ["acme"], **changed}
    return {name: value for name, value in given.items() if value is not None}


def signed(algorithm: str = "RS256", key: RSAKey | ECKey | None = None, header: Any = None, **changed: Any) -> str:
    signs = key or SIGNING[algorithm]
    return jwt.encode({"alg": algorithm, "kid": signs.kid, **(header or {})}, claims(**changed), signs, [algorithm])


def allowed(token: str, now: datetime = NOW) -> ApiKey:
    return ISSUER.key(token, KEYS, now)


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize("algorithm", SIGNING)
def test_a_token_allows_its_scopes_for_its_accounts_until_it_expires(algorithm: str) -> None:
    key = allowed(signed(algorithm))
    assert (key.scopes, key.accounts, key.issuer) == (frozenset({Scope.READ}), frozenset({"acme"}), ISSUER.issuer)
    assert not key.is_expired(NOW + timedelta(seconds=299))
    assert key.is_expired(NOW + timedelta(seconds=300 + MAX_CLOCK_SECONDS))


@given(scope=st.text() | st.lists(st.sampled_from([*SCOPES, "weir:portal", "weir:admin", "*"])) | st.none())
def test_no_scope_but_ingest_and_read_can_be_had(scope: object) -> None:
    named = scope.split() if isinstance(scope, str) else scope or []
    assert allowed(signed(scope=scope)).scopes == {SCOPES[name] for name in cast("Any", named) if name in SCOPES}


@pytest.mark.parametrize("claim", [None, "", [], [None], {"acme": 1}, 7, True])
def test_a_token_without_accounts_is_refused_and_never_one_for_all(claim: object) -> None:
    with pytest.raises(BadToken, match="names no account"):
        allowed(signed(weir_accounts=claim))


def test_sources_are_limited_by_a_claim_that_is_there() -> None:
    assert allowed(signed()).sources == ()
    assert allowed(signed(weir_sources="gateway, sdk-*")).sources == ("gateway", "sdk-*")
    for empty in ([], "", [None], 7, False):
        with pytest.raises(BadToken, match="names no source"):
            allowed(signed(weir_sources=empty))


def test_all_accounts_must_be_named_as_such() -> None:
    assert allowed(signed(weir_accounts="*")).accounts == frozenset()
    assert allowed(signed(weir_accounts=["*", "acme"])).accounts == {"acme"}


def test_a_public_key_is_no_shared_secret() -> None:
    """Alg confusion: HMAC with what everybody can read."""
    for secret in (SIGNING["RS256"].as_pem(private=False), json.dumps(PUBLISHED["keys"][0]).encode()):
        text = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(claims())}"
        mac = base64.urlsafe_b64encode(hmac.digest(secret, text.encode(), "sha256")).decode().rstrip("=")
        with pytest.raises(BadToken, match="algorithm"):
            allowed(f"{text}.{mac}")


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, 1, ["RS256"], "HS512", "RS1", "dir"])
def test_a_token_without_a_signature_that_counts_is_refused(algorithm: object) -> None:
    for signature in ("", "AAAA"):
        with pytest.raises(BadToken):
            allowed(f"{part({'alg': algorithm, 'kid': 'rsa'})}.{part(claims())}.{signature}")


def test_a_key_that_the_token_brings_is_not_used() -> None:
    brought = {"jku": "https://evil.example/keys", "x5u": "https://evil.example/chain"}
    with pytest.raises(BadToken, match="not signed"):
        allowed(signed(key=STRANGER, header=brought))
    with pytest.raises(BadToken):
        allowed(signed(key=STRANGER, header={"jwk": STRANGER.as_dict(private=False)}))
    with pytest.raises(UnknownKeyError):
        allowed(signed(key=STRANGER, header={**brought, "kid": "another"}))
    with pytest.raises(BadToken, match="extensions"):
        allowed(f"{part({'alg': 'RS256', 'kid': 'rsa', 'crit': ['exp']})}.{part(claims())}.AAAA")
    with pytest.raises(BadToken, match="kid"):
        allowed(f"{part({'alg': 'RS256'})}.{part(claims())}.AAAA")


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_of_keys_with_one_kid_the_one_of_the_algorithms_type_verifies(algorithm: str) -> None:
    """RFC 7517, 4.5: keys of different types that are alternatives may have the same kid."""
    pair: dict[str, RSAKey | ECKey] = {
        "ES256": ECKey.generate_key("P-256", {"kid": "k"}),
        "RS256": RSAKey.generate_key(2048, {"kid": "k"}),
    }
    published = KeySet.import_key_set(cast("Any", {"keys": [key.as_dict(private=False) for key in pair.values()]}))
    assert ISSUER.key(signed(algorithm, pair[algorithm]), published, NOW).accounts == {"acme"}


def test_a_key_verifies_only_by_its_own_algorithm() -> None:
    own = {"keys": [{**SIGNING["RS256"].as_dict(private=False), "alg": "PS256"}]}
    with pytest.raises(UnknownKeyError):
        ISSUER.key(signed(), KeySet.import_key_set(cast("Any", own)), NOW)
    encrypts = {"keys": [{**SIGNING["RS256"].as_dict(private=False), "use": "enc"}]}
    with pytest.raises(UnknownKeyError):
        ISSUER.key(signed(), KeySet.import_key_set(cast("Any", encrypts)), NOW)
    with pytest.raises(BadToken, match="not signed"):
        allowed(f"{part({'alg': 'RS256', 'kid': 'ec'})}.{part(claims())}.AAAA")


@given(data=st.data())
def test_one_changed_character_makes_a_token_worthless(data: st.DataObject) -> None:
    token = signed("ES256")
    place = data.draw(st.integers(0, len(token) - 1))
    character = data.draw(st.sampled_from("Ax_.9"))
    changed = f"{token[:place]}{character}{token[place + 1 :]}"
    try:
        assert allowed(changed) == allowed(token)
    except (BadToken, UnknownKeyError):
        return
    # The last characters of a part of Base64 may have bits that mean nothing.
    assert _bytes(changed) == _bytes(token)


def _bytes(token: str) -> list[bytes]:
    return [base64.urlsafe_b64decode(f"{text}{'=' * (-len(text) % 4)}") for text in token.split(".")]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"iss": "https://login.example/realms/b"}, "not of"),
        ({"iss": None}, "not of"),
        ({"aud": "weir-dashboard"}, "not for"),
        ({"aud": ["weir-dashboard", "other"]}, "not for"),
        ({"aud": None}, "not for"),
        ({"aud": "weir-api weir-dashboard"}, "not for"),
        ({"sub": None}, "sub"),
        ({"sub": "x" * 201}, "sub"),
        ({"exp": None}, "exp"),
        ({"iat": None}, "iat"),
        ({"exp": "never"}, "no instant"),
        ({"exp": 1e300}, "no instant"),
        ({"exp": 10**400}, "no instant"),
        ({"exp": float("nan")}, "no instant"),
        ({"iat": -(10**400)}, "no instant"),
        ({"nbf": NOW.timestamp() + MAX_CLOCK_SECONDS + 1}, "only later"),
        ({"iat": NOW.timestamp() + MAX_CLOCK_SECONDS + 1}, "only later"),
        ({"exp": NOW.timestamp() - MAX_CLOCK_SECONDS}, "expired"),
        ({"exp": NOW.timestamp() + MAX_LIFETIME_SECONDS + 1}, "longer than a day"),
    ],
)
def test_a_signed_token_that_is_of_or_for_others_or_of_another_time_is_refused(changed: Any, reason: str) -> None:
    with pytest.raises(BadToken, match=reason):
        allowed(signed(**changed))


def test_clocks_may_differ_by_a_minute_both_ways() -> None:
    late = NOW.timestamp() - MAX_CLOCK_SECONDS + 1
    assert allowed(signed(exp=late, iat=late - 100)).id.endswith("#gateway")
    early = NOW.timestamp() + MAX_CLOCK_SECONDS
    assert allowed(signed(iat=early, nbf=early, exp=early + 60)).id.endswith("#gateway")


@pytest.mark.parametrize("text", ["", ".", "..", "a.b.c", "\xe9.a.b", "x" * (17 << 10), f"{part([])}.{part({})}.AA"])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(BadToken):
        allowed(text)


@pytest.mark.parametrize("address", ["http://login.example", "ftp://login.example", "login.example", ""])
def test_an_issuer_that_anybody_on_the_network_could_impersonate_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="https"):
        TokenIssuer(address, "weir-api")


def test_an_issuer_needs_an_audience() -> None:
    with pytest.raises(CannotRun, match="WEIR_API_OIDC_AUDIENCE must be set"):
        issuer_in({"WEIR_API_OIDC_ISSUER": "https://login.example"})
    assert issuer_in({}) is None


@dataclass
class Provider:
    """A provider on this machine: what it answers can be changed, and it counts how often it is asked."""

    address: str = ""
    keys: Any = field(default_factory=lambda: PUBLISHED)
    described: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    asked: int = 0


@pytest.fixture
def provider() -> Iterator[Provider]:
    at = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            at.asked += self.path == "/keys"
            found = {"issuer": at.address, "jwks_uri": f"{at.address}/keys", **at.described}
            body = json.dumps(at.keys if self.path == "/keys" else found).encode()
            self.send_response(at.status)
            self.send_header("Location", "/keys")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    at.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield at
    server.shutdown()
    server.server_close()


def of(provider: Provider, clock: HandClock, **limits: int) -> IssuerKeys:
    keys = IssuerKeys(TokenIssuer(provider.address, "weir-api"), clock, **limits)
    asyncio.run(keys.fetch())
    return keys


async def fetching_for_a_while(keys: IssuerKeys) -> BaseException | None:
    """What ended the task that fetches; None: it goes on."""
    task = asyncio.create_task(keys.keep_fetching())
    done, _ = await asyncio.wait([task], timeout=0.5)
    task.cancel()
    return task.exception() if done else None


def token_of(provider: Provider, clock: HandClock, key: RSAKey | None = None) -> str:
    at = clock.now().timestamp()
    return signed(key=key, iss=provider.address, iat=at, exp=at + 300)


def test_keys_are_fetched_from_the_issuer_and_held_for_an_hour_without_it(provider: Provider) -> None:
    clock = HandClock(NOW)
    keys = of(provider, clock)
    assert keys.key(token_of(provider, clock)).accounts == {"acme"}
    provider.status = 500
    for later, holds in ((issuer_keys.KEYS_HOLD_SECONDS - 1, True), (1, False)):
        clock.go(later)
        asyncio.run(keys.fetch())
        if holds:
            assert keys.key(token_of(provider, clock)).issuer == provider.address
        else:
            with pytest.raises(Problem) as refused:
                keys.key(token_of(provider, clock))
            assert refused.value.status == 503


def refused_for(keys: IssuerKeys, token: str) -> str:
    """After how many seconds the client is to send it again."""
    with pytest.raises(Problem) as refused:
        keys.key(token)
    assert refused.value.status == 503
    return refused.value.headers["Retry-After"]


def test_a_key_that_the_provider_has_just_published_is_never_refused_for_good(provider: Provider) -> None:
    """Also within the ten seconds in which the provider is not asked again: 401 would have a gateway drop events."""
    clock = HandClock(NOW)
    keys = of(provider, clock)
    rotated = RSAKey.generate_key(2048, {"kid": "new"})
    provider.keys = {"keys": [rotated.as_dict(private=False)]}
    clock.go(0.5)
    assert refused_for(keys, token_of(provider, clock, rotated)) == "10"
    assert keys._wanted.is_set()
    clock.go(issuer_keys.FETCH_AT_MOST_EVERY_SECONDS)
    assert refused_for(keys, token_of(provider, clock, rotated)) == "1"
    asyncio.run(keys.fetch())
    assert keys.key(token_of(provider, clock, rotated)).issuer == provider.address
    # The key before it was withdrawn: that is known when it was asked for, and fetched after that.
    clock.go(1)
    withdrawn = token_of(provider, clock)
    assert refused_for(keys, withdrawn) == "9"
    clock.go(9)
    asyncio.run(keys.fetch())
    with pytest.raises(BadToken, match="no such key"):
        keys.key(withdrawn)
    assert provider.asked == 3


def test_a_key_that_somebody_named_before_it_was_published_is_not_refused_for_good_either(provider: Provider) -> None:
    clock = HandClock(NOW)
    keys = of(provider, clock)
    rotated = RSAKey.generate_key(2048, {"kid": "new"})
    guessed = token_of(provider, clock, RSAKey.generate_key(2048, {"kid": "new"}))
    clock.go(1)
    refused_for(keys, guessed)
    clock.go(issuer_keys.FETCH_AT_MOST_EVERY_SECONDS)
    asyncio.run(keys.fetch())
    clock.go(1)
    with pytest.raises(BadToken, match="no such key"):
        keys.key(guessed)
    provider.keys = {"keys": [rotated.as_dict(private=False)]}
    real = token_of(provider, clock, rotated)
    assert refused_for(keys, real) == "9"
    clock.go(9)
    asyncio.run(keys.fetch())
    assert keys.key(real).issuer == provider.address


def test_tokens_of_unknown_keys_make_the_server_ask_at_most_once_in_ten_seconds(provider: Provider) -> None:
    clock, slept = HandClock(NOW), list[float]()
    keys = IssuerKeys(TokenIssuer(provider.address, "weir-api"), clock)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.go(seconds)

    async def asked_by_many_tokens() -> None:
        # Not `asyncio.sleep` itself: servers of other tests may run in threads of this process.
        task = asyncio.create_task(keys.keep_fetching(sleep))
        while len(slept) < 3:
            await asyncio.wait([task], timeout=0.001)
            if keys._keys is not None and not keys._wanted.is_set():
                stranger = RSAKey.generate_key(2048, {"kid": f"stranger-{provider.asked}"})
                with pytest.raises(Problem):
                    keys.key(token_of(provider, clock, stranger))
        task.cancel()

    asyncio.run(asked_by_many_tokens())
    assert slept == [issuer_keys.FETCH_AT_MOST_EVERY_SECONDS] * 3


def test_no_more_tokens_of_unknown_keys_are_remembered_than_it_says(provider: Provider) -> None:
    clock = HandClock(NOW)
    keys = of(provider, clock, max_missed=3)
    tokens = [token_of(provider, clock, RSAKey.generate_key(2048, {"kid": str(number)})) for number in range(5)]
    for token in tokens:
        refused_for(keys, token)
    assert list(keys._missed) == [sha256(token.encode()).digest() for token in tokens[2:]]


@pytest.mark.parametrize(
    "changed",
    [
        {"keys": {"keys": [{"kty": "oct", "k": "AAAA", "kid": "rsa"}]}},
        {"keys": {"keys": []}},
        {"keys": {"keys": [{"kty": "RSA", "kid": "rsa"}]}},
        {"keys": {"keys": [PUBLISHED["keys"][0]] * 101}},
        {"keys": {"keys": [PUBLISHED["keys"][0]], "much": "x" * (300 << 10)}},
        {"keys": []},
        {"described": {"issuer": "https://another.example"}},
        {"described": {"jwks_uri": "http://another.example/keys"}},
        {"described": {"jwks_uri": "file:///etc/passwd"}},
        {"status": 302},
    ],
)
def test_a_provider_that_answers_otherwise_gives_no_keys(provider: Provider, changed: dict[str, Any]) -> None:
    for name, value in changed.items():
        setattr(provider, name, value)
    clock = HandClock(NOW)
    with pytest.raises(Problem) as refused:
        of(provider, clock).key(token_of(provider, clock))
    assert refused.value.status == 503


def test_a_key_that_cannot_be_used_takes_no_other_along(provider: Provider) -> None:
    """Providers publish keys of other curves and purposes beside those that sign."""
    point = PUBLISHED["keys"][1]
    others: list[dict[str, Any]] = [
        {"kty": "EC", "crv": "BP-256", "kid": "curve", "x": "AA", "y": "AA"},
        {**point, "kid": "point", "x": point["y"]},
        {**PUBLISHED["keys"][0], "kid": "purpose", "use": "tls"},
        {**PUBLISHED["keys"][0], "kid": 7},
        {"kty": "RSA", "kid": "empty"},
    ]
    clock = HandClock(NOW)
    for other in others:
        provider.keys = {"keys": [other, *PUBLISHED["keys"]]}
        assert of(provider, clock).key(token_of(provider, clock)).accounts == {"acme"}


@pytest.mark.parametrize(
    "changed",
    [
        {"keys": {"keys": [{"kty": "EC", "crv": "BP-256", "kid": "ec", "x": "AA", "y": "AA"}]}},
        {"described": {"jwks_uri": "https://login.example/\x01"}},
        {"described": {"jwks_uri": f"https://login.example/{'a' * 70_000}"}},
        {"described": {"jwks_uri": "https://[login.example/keys"}},
    ],
)
def test_nothing_that_a_provider_answers_ends_the_fetching(provider: Provider, changed: dict[str, Any]) -> None:
    for name, value in changed.items():
        setattr(provider, name, value)
    keys = IssuerKeys(TokenIssuer(provider.address, "weir-api"), HandClock(NOW))
    assert asyncio.run(fetching_for_a_while(keys)) is None


def test_a_token_of_a_new_key_is_not_refused_for_good_while_the_provider_does_not_answer(provider: Provider) -> None:
    """Whether the provider has the key is not known: 401 would have a gateway drop what it sends."""
    clock = HandClock(NOW)
    keys = of(provider, clock)
    rotated = RSAKey.generate_key(2048, {"kid": "new"})
    provider.status = 500
    clock.go(issuer_keys.FETCH_AT_MOST_EVERY_SECONDS)
    asyncio.run(keys.fetch())
    with pytest.raises(Problem) as refused:
        keys.key(token_of(provider, clock, rotated))
    assert refused.value.status == 503
    assert keys.key(token_of(provider, clock)).issuer == provider.address
