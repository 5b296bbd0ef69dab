"""Responses of providers → events `ai.inference.usage.v1`. They read attributes or keys, and import no provider's SDK.

The event's `id` is the response's: the same response, sent twice, is billed once. Where that is a small number, which
other responses soon have, too, a digest of the whole response is part of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Protocol
from uuid import uuid4

from weir_client.encoding import rfc3339

TYPE = "ai.inference.usage.v1"
Event = dict[str, Any]
_SMALL_NUMBER = re.compile(r"(?:[A-Za-z]+[-_])?[0-9]{1,13}")
"""Ollama, and servers like it, number their responses at random below 999, and others by the second: two of them would
be one event with two contents, of which one is billed.
"""


class _Sender(Protocol):
    def send(self, event: Mapping[str, Any], /) -> None: ...


def usage_event(
    *, account: str, source: str, model: str, response_id: str | None = None, time: datetime | None = None, **data: Any
) -> Event:
    """One call of a model that `account` is billed for. `source` names your service; `data` are its other fields.

    Fields that are None are left out. `response_id`: left out, each call of this function is another event.
    """
    mark = response_id or uuid4().hex
    fields = {"request_id": mark, "model": model, "status": "completed", **data}
    return {
        "type": TYPE,
        "source": source,
        "id": mark,
        "subject": account,
        "time": rfc3339(time or datetime.now(UTC)),
        "data": {name: value for name, value in fields.items() if value is not None},
    }


def openai_usage(response: Any, *, account: str, source: str, time: datetime | None = None, **data: Any) -> Event:
    """Of a response of OpenAI's chat completions, responses or embeddings, or of a compatible API."""
    given = _plain(response)
    usage = given.get("usage") or {}
    read = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    written = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    created = given.get("created") or given.get("created_at")
    time = time or (datetime.fromtimestamp(created, UTC) if created else None)
    tokens = {
        "input_tokens": usage.get("prompt_tokens", usage.get("input_tokens")),
        "output_tokens": usage.get("completion_tokens", usage.get("output_tokens")),
        "cached_tokens": read.get("cached_tokens"),
        "audio_input_tokens": read.get("audio_tokens"),
        "reasoning_tokens": written.get("reasoning_tokens"),
        "audio_output_tokens": written.get("audio_tokens"),
    }
    return usage_event(
        account=account,
        source=source,
        model=given["model"],
        response_id=_unique_id(given),
        time=time,
        **{**tokens, **data},
    )


def anthropic_usage(response: Any, *, account: str, source: str, time: datetime | None = None, **data: Any) -> Event:
    """Of a message of Anthropic, whose input does not include what was read from the cache or written to it."""
    given = _plain(response)
    usage = given["usage"]
    cached, cache_write = (usage.get(f"cache_{name}_input_tokens") or 0 for name in ("read", "creation"))
    tokens = {
        "input_tokens": usage["input_tokens"] + cached + cache_write,
        "output_tokens": usage["output_tokens"],
        "cached_tokens": cached,
        "cache_write_tokens": cache_write,
    }
    return usage_event(
        account=account, source=source, model=given["model"], response_id=given["id"], time=time, **{**tokens, **data}
    )


def litellm_callback(
    client: _Sender, *, source: str, account: Callable[[Mapping[str, Any]], str]
) -> Callable[[Mapping[str, Any], Any, datetime, datetime], None]:
    """A function for `litellm.success_callback`. `account` finds the account in LiteLLM's `kwargs` of the call."""

    def on_success(kwargs: Mapping[str, Any], response: Any, _started: datetime, ended: datetime) -> None:
        client.send(openai_usage(response, account=account(kwargs), source=source, time=ended))

    return on_success


def _unique_id(response: Mapping[str, Any]) -> str | None:
    """The response's id, by which no other response is called; None where it has none."""
    given = response.get("id")
    if not given or not _SMALL_NUMBER.fullmatch(str(given)):
        return given or None
    whole = json.dumps(response, sort_keys=True, default=str).encode()
    return f"{given}-{sha256(whole).hexdigest()[:24]}"


def _plain(response: Any) -> Mapping[str, Any]:
    """A response as its JSON: it is that already, or an object of pydantic's."""
    found: Mapping[str, Any] = response if isinstance(response, Mapping) else response.model_dump()
    return found
