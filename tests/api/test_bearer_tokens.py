"""Tokens of an identity provider on the running API: they read and send for their accounts, and no others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from api.server import ISSUER_VARIABLES
from tests.api.serving import Server, serving, start_ingestion
from tests.api.test_asking import fill, get
from tests.api.test_events_in import OWN, encoded, event, refused
from tests.conftest import fresh_database
from tests.waiting import wait_until

KEY = RSAKey.generate_key(2048, {"kid": "k"})


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = {"issuer": address, "jwks_uri": f"{address}/keys", "keys": [KEY.as_dict(private=False)]}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield address
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def trusting(bootstrap: str, postgres_url: str, issuer: str) -> Iterator[Server]:
    variables = {ISSUER_VARIABLES["issuer"]: issuer, ISSUER_VARIABLES["audience"]: "weir-api"}
    with fresh_database(postgres_url) as database:
        fill(database)
        start_ingestion(database)
        with serving(bootstrap, database, variables=variables) as running:
            wait_until(lambda: get(running, "/v1/usage", token(issuer)).status == 200, "the keys of the provider", 30)
            yield running


def token(issuer: str, key: RSAKey = KEY, **changed: Any) -> str:
    at = time.time()
    claims = {"iss": issuer, "aud": "weir-api", "sub": "g", "iat": at, "exp": at + 300, "weir_accounts": ["acme"]}
    return jwt.encode({"alg": "RS256", "kid": "k"}, {**claims, "scope": "weir:read", **changed}, key)


def test_a_token_reads_its_accounts_alone(trusting: Server, issuer: str) -> None:
    mine = get(trusting, "/v1/usage", token(issuer)).json["data"]
    assert {row["account"] for row in mine} == {"acme"}
    every = get(trusting, "/v1/usage", token(issuer, weir_accounts="*")).json["data"]
    assert {row["account"] for row in every} > {"acme"}


def test_a_token_sends_for_its_accounts_alone_and_only_with_the_scope(trusting: Server, issuer: str) -> None:
    mine, other = encoded(event(subject="acme")), encoded(event(subject="globex"))
    sends = token(issuer, scope="weir:ingest")
    assert trusting.post(OWN, mine, sends).json["accepted"] == 1
    refused(trusting.post(OWN, other, sends), 403, "may not send for its subject")
    refused(trusting.post(OWN, mine, token(issuer)), 403, "does not have the scope ingest")
    refused(get(trusting, "/v1/usage", sends), 403, "does not have the scope read")
    refused(trusting.post("/api/v1/portal/tokens", b'{"subject": "acme"}', sends), 403, "portal")


def test_a_token_that_is_refused_is_told_why_and_nothing_is_taken(trusting: Server, issuer: str) -> None:
    forged = token(issuer, RSAKey.generate_key(2048, {"kid": "k"}))
    answer = get(trusting, "/v1/usage", forged)
    refused(answer, 401, "has not signed it")
    assert answer.headers["www-authenticate"] == 'Bearer realm="weir"'
    refused(get(trusting, "/v1/usage", token(issuer, aud="weir-dashboard")), 401, "not for weir-api")
    refused(get(trusting, "/v1/usage", token(issuer, exp=time.time() - 120)), 401, "expired")
