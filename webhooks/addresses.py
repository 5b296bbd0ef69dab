"""Which addresses are called: public ones. A person who adds an endpoint must not reach Weir's own network by it.

A name is resolved once for each call, and the call goes to the address that was checked: a name that has another
address a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import httpx

NAT64 = IPv6Network("64:ff9b::/96")
PROTOCOLS = IPv4Network("192.0.0.0/24")
"""Python 3.11 takes most of it for public; Oracle's cloud has its metadata there."""

REFUSED = re.compile(r" is (?=[^ ,]*[.:][^ ,])[0-9a-f.:%]+(,.*)?$")
"""The sentence about a private address, also where a long name has left less room for its end."""


class AddressRefused(Exception):
    """An endpoint that is not called, with a sentence that says why."""


def checked_url(text: str, *, allows_private: bool) -> httpx.URL:
    """The URL of an endpoint. Raises AddressRefused for one that could never be called by any address."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as problem:
        raise AddressRefused(f"{text!r} is no URL: {problem}") from None
    schemes = ("https", "http") if allows_private else ("https",)
    if url.scheme not in schemes or not url.host:
        raise AddressRefused(f"{text!r} must begin with https:// and name a host")
    if url.port is not None and not 0 < url.port < 1 << 16:
        raise AddressRefused(f"{url.port} is no port")
    if url.userinfo or url.fragment:
        raise AddressRefused("an endpoint has no user, password or fragment")
    if not allows_private:
        # A name is no address: what it stands for is looked at with each call.
        with suppress(ValueError):
            refuse_private([url.host], url.host)
    return url


def refuse_private(addresses: list[str], host: str) -> None:
    """Raises AddressRefused if any of a host's addresses is not public; ValueError for what is no address."""
    for address in addresses:
        if not is_public(address):
            raise AddressRefused(f"{host} is {address}, which is no public address")


def without_address(error: str | None) -> str | None:
    """The same for a customer, who must not learn what a name of Weir's own network stands for."""
    return "the host has no public address" if error and REFUSED.search(error) else error


def is_public(text: str) -> bool:
    """Whether an address is of the public internet, also by the IPv4 address in one of IPv6. Raises ValueError."""
    address: IPv4Address | IPv6Address | None = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        if address in NAT64:
            return is_public(str(IPv4Address(int(address) & 0xFFFFFFFF)))
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return is_public(str(inner))
        if address.is_site_local:
            return False
    assert address is not None
    if address in PROTOCOLS:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def host_of(url: httpx.URL) -> str:
    """The host as it is asked for and certified, in ASCII.

    `url.host` is in Unicode, which `socket` and `ssl` encode by IDNA 2003: ß as ss, which is the name of somebody else.
    """
    return url.raw_host.decode("ascii")


async def address_of(url: httpx.URL, *, allows_private: bool) -> str:
    """The address to connect to. Raises AddressRefused if one of the host's is not public, OSError without any."""
    port = url.port or (443 if url.scheme == "https" else 80)
    found = await asyncio.get_running_loop().getaddrinfo(host_of(url), port, type=socket.SOCK_STREAM)
    addresses = [str(place[0]) for *_, place in found]
    if not addresses:
        raise OSError(f"{url.host} has no address")
    if not allows_private:
        refuse_private(addresses, url.host)
    return addresses[0]
