"""A portal token says what its key put in, and whatever else somebody sends is none."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from metering.api_keys import ApiKey, RateLimits, Scope, digest_of, new_key
from metering.portal_invalidations import invalidations_of
from metering.portal_tokens import PREFIX, PortalToken, is_signed, may_make, token_of


def key(*accounts: str, scopes: tuple[Scope, ...] = (Scope.PORTAL,)) -> ApiKey:
    key_id, text = new_key()
    return ApiKey(key_id, digest_of(text), frozenset(scopes), frozenset(accounts), limits=RateLimits(3, 5))


MAKER, OTHER = key(), key()
EXPIRES = datetime(2026, 11, 1, 10, tzinfo=UTC)
NAMES = st.text(min_size=1, max_size=40).filter(lambda text: text.encode("utf-8", "replace").decode() == text)
TOKENS = st.builds(
    PortalToken,
    st.just(MAKER.id),
    NAMES,
    st.datetimes(datetime(1970, 1, 2), datetime(9999, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
        lambda at: at.replace(microsecond=0)
    ),
    st.lists(NAMES, max_size=4).map(tuple),
)


@given(TOKENS)
def test_a_token_says_what_its_key_put_in_and_is_of_that_key_alone(token: PortalToken) -> None:
    text = token.text(MAKER)
    assert text.isascii()
    assert token_of(text) == token
    assert is_signed(text, MAKER)
    assert not is_signed(text, OTHER)


@given(TOKENS, st.data())
def test_a_token_with_any_other_character_is_none(token: PortalToken, data: st.DataObject) -> None:
    text = token.text(MAKER)
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.characters().filter(lambda c: c != text[place])) + text[place + 1 :]
    assert token_of(changed) is None or not is_signed(changed, MAKER)


@given(st.text() | st.text().map(lambda text: PREFIX + text) | st.from_regex(r"weir_portal_[\w-]*\.[0-9a-f]{64}"))
def test_any_text_is_a_token_or_none(text: str) -> None:
    token_of(text)


def test_what_a_token_stands_for_reads_one_account_and_makes_no_tokens() -> None:
    reading = PortalToken(MAKER.id, "acme", EXPIRES, ("input_tokens",)).reading(MAKER)
    assert (reading.accounts, reading.scopes, reading.expires_at) == (frozenset({"acme"}), frozenset(), EXPIRES)
    assert (reading.made_by, reading.meters, reading.limits) == (MAKER.id, frozenset({"input_tokens"}), MAKER.limits)
    assert not may_make(reading, "acme")


def test_a_key_makes_tokens_for_its_accounts_alone() -> None:
    assert may_make(key(), "acme")
    assert may_make(key("acme", "b"), "acme")
    assert not may_make(key("b"), "acme")
    assert not may_make(key(scopes=(Scope.READ, Scope.INGEST)), "acme")


@given(TOKENS, st.integers(0, 5), st.integers(0, 5))
def test_a_token_ends_with_the_invalidations_of_its_account_that_came_after_it(
    token: PortalToken, made_after: int, invalidated: int
) -> None:
    token = replace(token, generation=made_after)
    assert token_of(token.text(MAKER)) == token
    rows = [{"account": token.account, "token_id": "", "of_accounts": "", "generation": invalidated}]
    found = invalidations_of(rows if invalidated else [])
    assert found.ends(token.account, token.id, token.generation) == (made_after < invalidated)
    assert not found.ends(f"{token.account}-2", token.id, token.generation)


def test_a_single_token_is_ended_by_keys_of_its_account_alone() -> None:
    token = PortalToken(MAKER.id, "acme", EXPIRES)

    def is_ended(token_id: str, *of_accounts: str) -> bool:
        rows = [{"account": "", "token_id": token_id, "of_accounts": of, "generation": 1} for of in of_accounts]
        return invalidations_of(rows).ends(token.account, token.id, token.generation)

    assert is_ended(token.id, "*")
    assert is_ended(token.id, '["b"]', '["acme"]')
    assert not is_ended(token.id, '["b"]')
    assert not is_ended(replace(token, meters=("requests",)).id, "*")


def test_a_token_without_invalidations_has_the_form_that_earlier_releases_take() -> None:
    text = PortalToken(MAKER.id, "acme", EXPIRES).text(MAKER)
    payload = base64.urlsafe_b64decode(text.removeprefix(PREFIX).partition(".")[0] + "==")
    assert json.loads(payload).keys() == {"key", "account", "expires", "meters"}
