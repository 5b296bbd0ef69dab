"""No address that is not public is called: not by its number in any form, not by a name, not by a name that changes."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webhooks.addresses import AddressRefused, checked_url, is_public, refuse_private, without_address
from webhooks.posting import MAX_ERROR_CHARACTERS, Poster

PRIVATE = [
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
    *("192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4"),
]
IN_PRIVATE = st.sampled_from(PRIVATE).flatmap(lambda text: st.ip_addresses(network=text))
PUBLIC_ADDRESS = "93.184.215.14"


@given(IN_PRIVATE)
def test_a_private_address_is_refused_also_where_one_of_ipv6_holds_it(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    assert not is_public(str(address))
    for embedded in (0xFFFF << 32 | number, 0x0064FF9B << 96 | number, 0x2002 << 112 | number << 80):
        assert not is_public(str(ipaddress.IPv6Address(embedded)))


@pytest.mark.parametrize("text", ["::1", "::", "fe80::1%eth0", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1"])
def test_a_private_address_of_ipv6_is_refused(text: str) -> None:
    assert not is_public(text)


@pytest.mark.parametrize("text", [PUBLIC_ADDRESS, "2606:4700::1111", "64:ff9b::5db8:d70e"])
def test_a_public_address_is_called(text: str) -> None:
    assert is_public(text)


@pytest.mark.parametrize(
    "text",
    [
        *("http://example.com/", "ftp://example.com/", "//example.com", "example.com", "https://", "https:///path"),
        *("https://a:b@example.com/", "https://example.com/#part", "https://127.0.0.1/", "https://[::1]:8443/"),
        *("https://[::ffff:10.0.0.1]/", "https://169.254.169.254/latest/meta-data", "https://example.com:99999/"),
    ],
)
def test_an_endpoint_that_may_not_be_called_is_refused_when_it_is_added(text: str) -> None:
    with pytest.raises(AddressRefused):
        checked_url(text, allows_private=False)


def test_private_addresses_and_plain_http_are_called_where_that_was_allowed() -> None:
    assert str(checked_url("http://127.0.0.1:8000/hook?a=1", allows_private=True)) == "http://127.0.0.1:8000/hook?a=1"


class Resolver:
    """Gives one answer after the other, as a name does whose owner turns it over between check and connect."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.names: list[str] = []

    async def __call__(self, name: str, port: int, **_: Any) -> list[Any]:
        self.asked += 1
        self.names.append(name)
        found = self.answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]


def posted(monkeypatch: pytest.MonkeyPatch, resolver: Resolver, url: str, times: int = 1) -> tuple[list[Any], Any]:
    """The requests that would go out, and the last attempt."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(307, headers={"location": "http://127.0.0.1/"})

    async def run() -> Any:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolver)
        poster = Poster(allows_private=False, transport=httpx.MockTransport(answer))
        attempt = None
        for _ in range(times):
            attempt = await poster.post(url, b"{}", {})
        await poster.close()
        return attempt

    return seen, asyncio.run(run())


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver([PUBLIC_ADDRESS], ["127.0.0.1"])
    seen, attempt = posted(monkeypatch, resolver, "https://example.com:8443/hook")
    assert [(str(request.url), request.headers["host"]) for request in seen] == [
        (f"https://{PUBLIC_ADDRESS}:8443/hook", "example.com:8443")
    ]
    assert seen[0].extensions["sni_hostname"] == "example.com"
    assert resolver.asked == 1, "a second question could have another answer"
    assert (attempt.status, attempt.error) == (307, None), "and the redirect is followed to nowhere"


@pytest.mark.parametrize("host", ["straße.example", "xn--strae-oqa.example"])
def test_a_name_beyond_ascii_is_asked_for_as_it_is_named_in_the_request(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    resolver = Resolver([PUBLIC_ADDRESS])
    seen, _ = posted(monkeypatch, resolver, f"https://{host}/")
    # `socket` and `ssl` would make strasse.example of a ß, which belongs to somebody else.
    asked = {*resolver.names, seen[0].headers["host"], seen[0].extensions["sni_hostname"]}
    assert asked == {"xn--strae-oqa.example"}


def test_a_name_that_has_become_private_is_refused_at_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver([PUBLIC_ADDRESS], ["10.1.2.3"])
    seen, attempt = posted(monkeypatch, resolver, "https://example.com/", times=2)
    assert len(seen) == 1
    assert attempt.error == "example.com is 10.1.2.3, which is no public address"


@pytest.mark.parametrize("answers", [[PUBLIC_ADDRESS, "127.0.0.1"], ["127.0.0.1", PUBLIC_ADDRESS]])
def test_a_name_with_one_private_address_among_others_is_refused(
    monkeypatch: pytest.MonkeyPatch, answers: list[str]
) -> None:
    seen, attempt = posted(monkeypatch, Resolver(answers), "https://example.com/")
    assert seen == []
    assert "127.0.0.1" in attempt.error


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "localhost"])
def test_other_ways_to_write_an_address_of_this_machine_are_refused(host: str) -> None:
    async def run() -> Any:
        poster = Poster(allows_private=False)
        try:
            return await poster.post(f"https://{host}/", b"{}", {})
        finally:
            await poster.close()

    assert "no public address" in asyncio.run(run()).error


@settings(max_examples=30)
@given(st.text(alphabet="/:@[]%#?.0\x00é", max_size=12))
def test_no_text_ends_the_sender(text: str) -> None:
    async def run() -> Any:
        poster = Poster(allows_private=False, transport=httpx.MockTransport(lambda _: httpx.Response(500)))
        try:
            return await poster.post(f"https://127.0.0.1{text}", b"{}", {}), await poster.post(text, b"{}", {})
        finally:
            await poster.close()

    assert all(attempt.status is None and attempt.error for attempt in asyncio.run(run()))


@pytest.mark.parametrize("address", ["10.1.2.3", "fd00::1", "::ffff:10.1.2.3"])
@pytest.mark.parametrize("host", ["example.com", f"{'a.' * 88}com"])
def test_a_customer_is_told_no_address_also_where_the_sentence_is_cut(host: str, address: str) -> None:
    with pytest.raises(AddressRefused) as refused:
        refuse_private([address], host)
    assert without_address(str(refused.value)[:MAX_ERROR_CHARACTERS]) == "the host has no public address"


@pytest.mark.parametrize(
    "error", [None, "no answer within 15 s", "[Errno -2] Name or service not known", "a is b.c: d"]
)
def test_any_other_error_is_told_as_it_is(error: str | None) -> None:
    assert without_address(error) == error
