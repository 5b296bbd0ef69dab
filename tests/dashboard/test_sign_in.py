"""Sign-in: without it nothing is shown, and with it only the accounts of the viewer's claim.

A real identity provider (OpenID Connect) runs on this machine, and a real browser signs in to it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from itsdangerous import TimestampSigner
from joserfc import jwt
from joserfc.jwk import OctKey
from oidc_provider_mock import User, run_server_in_thread
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pydantic import SecretStr

from dashboard.scope import Scope
from dashboard.settings import Settings
from dashboard.sign_in import NotSignedIn, SeesNothing, SignIn
from laptop.ports import free_port
from tests.dashboard.seeding import Day

CHROMIUM = shutil.which("chromium")
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
SIGN_IN = SignIn(
    metadata_url="http://provider/.well-known/openid-configuration",
    client_id="weir",
    client_secret=SecretStr("s"),
    redirect_uri="http://localhost/oauth2callback",
    cookie_secret=SecretStr("c"),
)


def claims(accounts: object, at: datetime = NOW) -> dict[str, Any]:
    return {"is_logged_in": True, "iat": at.timestamp(), "email": "ada@example.com", "weir_accounts": accounts}


@pytest.mark.parametrize(
    ("claim", "seen"),
    [
        (["acme"], {"acme"}),
        (["acme", " globex ", ""], {"acme", "globex"}),
        ("acme, globex", {"acme", "globex"}),
        ("*", None),
        (["*"], None),
        (["*", "acme"], {"acme"}),
    ],
)
def test_a_claim_names_the_accounts_that_its_viewer_sees(claim: object, seen: set[str] | None) -> None:
    assert SIGN_IN.seen_by(claims(claim), NOW) == Scope(None if seen is None else frozenset(seen))


@pytest.mark.parametrize("claim", [None, "", " , ", [], [""], [None, 7], {"acme": 1}, 7, True])
def test_a_claim_that_names_no_account_shows_nothing(claim: object) -> None:
    with pytest.raises(SeesNothing, match=r"ada@example\.com.*weir_accounts"):
        SIGN_IN.seen_by(claims(claim), NOW)


@pytest.mark.parametrize("shown", [{}, {"is_logged_in": False}, {"weir_accounts": "*", "iat": NOW.timestamp()}])
def test_without_a_sign_in_nothing_is_shown_whatever_else_is_claimed(shown: dict[str, Any]) -> None:
    with pytest.raises(NotSignedIn):
        SIGN_IN.seen_by(shown, NOW)


def test_a_session_ends_after_its_hours() -> None:
    issued = NOW - timedelta(hours=12)
    assert SIGN_IN.seen_by(claims("*", issued), NOW - timedelta(seconds=1)).is_all
    with pytest.raises(NotSignedIn, match="ended"):
        SIGN_IN.seen_by(claims("*", issued), NOW)
    with pytest.raises(NotSignedIn, match="iat"):
        SIGN_IN.seen_by({**claims("*"), "iat": None}, NOW)


@pytest.mark.parametrize(
    "issued_at", [NOW.timestamp() * 1_000, 1e300, float("inf"), float("nan"), -1e300, 10**400, -(10**400), True]
)
def test_a_time_of_issue_that_is_no_time_is_no_sign_in(issued_at: object) -> None:
    with pytest.raises(NotSignedIn):
        SIGN_IN.seen_by({**claims("*"), "iat": issued_at}, NOW)


def test_hours_beyond_all_calendars_are_a_session_without_an_end() -> None:
    assert SIGN_IN.model_copy(update={"hours": 1e300}).seen_by(claims("*"), NOW).is_all


def test_a_claim_widens_no_dashboard_that_shows_some_accounts() -> None:
    settings = Settings(scope=Scope(frozenset({"acme", "initech"})), sign_in=SIGN_IN)
    assert settings.seen_by(claims("*"), NOW).scope == Scope(frozenset({"acme", "initech"}))
    assert settings.seen_by(claims(["acme", "globex"]), NOW).scope == Scope(frozenset({"acme"}))
    with pytest.raises(SeesNothing):
        settings.seen_by(claims(["globex"]), NOW)


def test_sign_in_that_is_configured_in_part_is_refused_and_no_secret_is_printed() -> None:
    with pytest.raises(ValueError, match="WEIR_OIDC_CLIENT_SECRET, WEIR_OIDC_REDIRECT_URI, WEIR_OIDC_COOKIE_SECRET"):
        SignIn.of({"WEIR_OIDC_METADATA_URL": "http://p", "WEIR_OIDC_CLIENT_ID": "weir"})
    assert SignIn.of({"PATH": "/bin"}) is None
    whole = SIGN_IN.model_copy(update={"client_secret": SecretStr("hush"), "cookie_secret": SecretStr("hush")})
    assert "hush" not in repr(Settings(sign_in=whole))


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    """An identity provider with three users; gives the address at which it describes itself."""
    users = [
        User(sub="ada", claims={"email": "ada@example.com", "weir_accounts": ["acme"]}),
        User(sub="root", claims={"email": "root@example.com", "weir_accounts": "*"}),
        User(sub="nobody", claims={"email": "nobody@example.com"}),
    ]
    with run_server_in_thread(port=free_port(), user_claims=users) as server:
        yield f"http://localhost:{server.server_port}/.well-known/openid-configuration"


@contextmanager
def dashboard(
    environment: dict[str, str], folder: Path, end: signal.Signals = signal.SIGTERM, port: int | None = None
) -> Iterator[str]:
    """A dashboard as it is deployed, ended by a signal; gives its address."""
    port = port or free_port()
    address = f"http://localhost:{port}"
    command = [sys.executable, "-m", "dashboard", "--server.headless=true", f"--server.port={port}"]
    given = {"WEIR_OIDC_REDIRECT_URI": f"{address}/oauth2callback", **environment}
    with (folder / "dashboard.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **given}, stdout=log, stderr=subprocess.STDOUT)
        try:
            for _ in range(600):
                try:
                    if httpx.get(f"{address}/_stcore/health").is_success:
                        break
                except httpx.TransportError:
                    time.sleep(0.1)
            yield address
        finally:
            process.send_signal(end)
            process.wait(120)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_no_file_has_the_secrets_of_signing_in_and_another_pod_accepts_who_comes_back(
    provider: str, tmp_path: Path, end: signal.Signals
) -> None:
    client, cookie = "canary-of-the-client", "canary-of-the-cookie-of-enough-letters"
    homes = {name: str(tmp_path) for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME")}
    oidc = {"METADATA_URL": provider, "CLIENT_ID": "weir", "CLIENT_SECRET": client, "COOKIE_SECRET": cookie}
    environment = {**homes, **{f"WEIR_OIDC_{name}": value for name, value in oidc.items()}}

    def files_with_secrets() -> list[Path]:
        return [
            path
            for path in tmp_path.rglob("*")
            if path.is_file() and any(secret.encode() in path.read_bytes() for secret in (client, cookie))
        ]

    with dashboard(environment, tmp_path, end) as address:
        now = int(datetime.now(UTC).timestamp())
        token = jwt.encode({"alg": "HS256"}, {"provider": "default", "exp": now + 60}, OctKey.import_key(cookie))
        asked = httpx.get(f"{address}/auth/login", params={"provider": token}, timeout=60)
        assert asked.status_code == 302
        assert asked.headers["location"].startswith(provider.partition("/.well-known")[0])
        # The browser returns with what any pod of the release can read: it was signed with the secret that they share.
        assert TimestampSigner(cookie).unsign(asked.cookies["_streamlit_session"])
        assert files_with_secrets() == []
    assert files_with_secrets() == []


@pytest.fixture
def served(provider: str, seeded: str, tmp_path: Path) -> Iterator[str]:
    """A dashboard of `day`, whose viewers sign in."""
    oidc = {"METADATA_URL": provider, "CLIENT_ID": "weir", "CLIENT_SECRET": "s", "COOKIE_SECRET": "c" * 32}
    with dashboard({f"WEIR_OIDC_{name}": value for name, value in oidc.items()}, tmp_path) as address:
        yield address


@pytest.fixture
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        assert not os.environ.get("CI"), "CI installs chromium"
        pytest.skip("chromium is not on the PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def sign_in(page: Page, address: str, user: str) -> None:
    page.goto(address)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("textbox").fill(user)
    page.get_by_role("button").first.click()


def test_viewers_see_nothing_before_they_sign_in_and_then_only_their_accounts(
    served: str, browser: Browser, day: Day
) -> None:
    page = browser.new_page()
    page.set_default_timeout(60_000)
    for path in ("", "/bills", "/windows"):
        page.goto(served + path)
        expect(page.get_by_text("Sign in to see usage and bills.")).to_be_visible(timeout=60_000)
        assert "acme" not in page.content()
        assert "Overview" not in page.content()
    sign_in(page, f"{served}/windows", "ada")
    expect(page.get_by_text("Only acme")).to_be_visible(timeout=60_000)
    expect(page.get_by_text("ada@example.com")).to_be_visible()
    # Streamlit ends the session at the provider, too.
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/oauth2/end_session**")
    page.goto(served)
    expect(page.get_by_text("Sign in to see usage and bills.")).to_be_visible(timeout=60_000)
    for user, sentence in {"root": "All accounts", "nobody": "names no account"}.items():
        other = browser.new_context().new_page()
        sign_in(other, served, user)
        expect(other.get_by_text(sentence)).to_be_visible(timeout=60_000)


@pytest.mark.long
def test_other_secrets_of_signing_in_take_over_and_those_before_sign_nobody_in(
    seeded: str, browser: Browser, tmp_path: Path
) -> None:
    port, user = free_port(), User(sub="ada", claims={"email": "ada@example.com", "weir_accounts": ["acme"]})
    page = browser.new_page()
    page.set_default_timeout(60_000)
    with run_server_in_thread(port=free_port(), require_client_registration=True, user_claims=[user]) as server:
        provider = f"http://localhost:{server.server_port}"
        returns = {"redirect_uris": [f"http://localhost:{port}/oauth2callback"]}
        first, second = (httpx.post(f"{provider}/oauth2/clients", json=returns).json() for _ in range(2))

        def pod(client_id: str, client_secret: str, cookie: str) -> AbstractContextManager[str]:
            oidc = {"CLIENT_ID": client_id, "CLIENT_SECRET": client_secret, "COOKIE_SECRET": cookie * 32}
            given = {**oidc, "METADATA_URL": f"{provider}/.well-known/openid-configuration"}
            return dashboard({f"WEIR_OIDC_{name}": value for name, value in given.items()}, tmp_path, port=port)

        with pod(first["client_id"], first["client_secret"], "c") as address:
            sign_in(page, address, "ada")
            expect(page.get_by_text("Only acme")).to_be_visible(timeout=60_000)
        with pod(second["client_id"], second["client_secret"], "d") as address:
            page.goto(address)
            expect(page.get_by_text("Sign in to see usage and bills.")).to_be_visible(timeout=60_000)
            sign_in(page, address, "ada")
            expect(page.get_by_text("Only acme")).to_be_visible(timeout=60_000)
        with pod(second["client_id"], first["client_secret"], "e") as address:
            sign_in(page, address, "ada")
            page.goto(address)
            expect(page.get_by_text("Sign in to see usage and bills.")).to_be_visible(timeout=60_000)
