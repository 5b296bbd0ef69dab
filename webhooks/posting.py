"""One POST: to the address that was checked, over a connection of its own, following no redirect."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import httpx

from webhooks.addresses import address_of, checked_url, host_of
from webhooks.outcomes import Attempt
from webhooks.wording import shown

TIMEOUT_SECONDS = 20.0
"""From resolving the name to the status; the specification recommends 15 to 30."""
MAX_ERROR_CHARACTERS = 200


class Poster:
    """Posts to endpoints. Environment variables name no proxy here: it would connect where nothing was checked."""

    def __init__(
        self,
        *,
        allows_private: bool,
        trust: ssl.SSLContext | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._allows_private = allows_private
        # A connection that is kept would be found again by its address, though it was made for another host name.
        self._client = httpx.AsyncClient(
            verify=trust or ssl.create_default_context(),
            trust_env=False,
            follow_redirects=False,
            timeout=TIMEOUT_SECONDS,
            transport=transport,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Attempt:
        """POST a message; what goes wrong is the error of the attempt. The answer's body is not read."""
        return await self._tried(url, body, headers, reads_refusal=False)

    async def post_to_slack(self, url: str, body: bytes, headers: Mapping[str, str]) -> Attempt:
        """The same; the error is the text of a refusal, as Slack answers `no_service` where the URL was withdrawn."""
        return await self._tried(url, body, headers, reads_refusal=True)

    async def _tried(self, url: str, body: bytes, headers: Mapping[str, str], *, reads_refusal: bool) -> Attempt:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await self._post(url, body, headers, reads_refusal=reads_refusal)
        except TimeoutError:
            return Attempt(error=f"no answer within {TIMEOUT_SECONDS:.0f} s")
        except Exception as problem:  # noqa: BLE001 -- no endpoint may stop the others
            return Attempt(error=(str(problem) or type(problem).__name__)[:MAX_ERROR_CHARACTERS])

    async def close(self) -> None:
        """End it."""
        await self._client.aclose()

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str], *, reads_refusal: bool) -> Attempt:
        named = checked_url(url, allows_private=self._allows_private)
        address = await address_of(named, allows_private=self._allows_private)
        sent = {**headers, "host": named.netloc.decode(), "content-type": "application/json", "user-agent": "weir"}
        # A refusal is shown as it comes.
        sent["accept-encoding"] = "identity"
        # The certificate is that of the name, though the address is connected to.
        place, extensions = named.copy_with(host=address), {"sni_hostname": host_of(named)}
        async with self._client.stream("POST", place, content=body, headers=sent, extensions=extensions) as answer:
            refusal = await _first_line(answer) if reads_refusal and not answer.is_success else None
            return Attempt(answer.status_code, refusal, answer.headers.get("retry-after"))


async def _first_line(answer: httpx.Response) -> str | None:
    """Of what is answered, as far as it comes at once and may be shown."""
    async for chunk in answer.aiter_raw():
        return shown(chunk[:MAX_ERROR_CHARACTERS].decode(errors="replace").strip()) or None
    return None
