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
CHUNKS = ("chat.completion.chunk", "text_completion.chunk")
RUNNING = ("queued", "in_progress")
STATUSES = {"failed": "error", "cancelled": "cancelled"}
"""Of OpenAI's responses; any other that is over has completed."""
CACHED = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
"""What was read from the cache, where a compatible API does not report it as OpenAI does."""
CACHE_WRITE_1H = "cache_write_1h_tokens"
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
    """Of a response of OpenAI's chat completions, responses or embeddings, or of a compatible API or gateway.

    What the cache gave or took is within the input of all of these. Of a stream give the last chunk alone, also where
    each has the usage so far. Raises ValueError for a chunk without usage, and for a response that is not over: each
    has the id of the one that has the usage.
    """
    given = _plain(response)
    usage = given.get("usage") or {}
    if not usage and (given.get("object") in CHUNKS or given.get("status") in RUNNING):
        raise ValueError(
            f"{given.get('id')} has no usage yet: of a stream send the last chunk (OpenAI reports usage there with "
            'stream_options={"include_usage": True}), and of a background response the one that is over'
        )
    read = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    written = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    created = given.get("created") or given.get("created_at")
    time = time or (datetime.fromtimestamp(created, UTC) if created else None)
    # DeepSeek, Moonshot and LiteLLM count these beside the details. Anthropic's own input does not include them.
    beside = usage if "prompt_tokens" in usage else {}
    tokens = {
        "input_tokens": _first(usage.get("prompt_tokens"), usage.get("input_tokens")),
        "output_tokens": _first(usage.get("completion_tokens"), usage.get("output_tokens")),
        "cached_tokens": _first(read.get("cached_tokens"), *(beside.get(name) for name in CACHED)),
        "cache_write_tokens": _first(
            *(read.get("cache_write_tokens"), read.get("cache_creation_tokens")),
            beside.get("cache_creation_input_tokens"),
        ),
        "audio_input_tokens": read.get("audio_tokens"),
        "reasoning_tokens": written.get("reasoning_tokens"),
        "audio_output_tokens": written.get("audio_tokens"),
        "image_output_tokens": written.get("image_tokens"),
    }
    if usage and given.get("object") == "list" and tokens["output_tokens"] is None:
        tokens["output_tokens"] = 0  # embeddings have none, and that is no missing report
    return usage_event(
        account=account,
        source=source,
        model=given["model"],
        response_id=_unique_id(given),
        time=time,
        **{"status": STATUSES.get(given.get("status") or "", "completed"), **tokens, **data},
    )


def anthropic_usage(response: Any, *, account: str, source: str, time: datetime | None = None, **data: Any) -> Event:
    """Of a message of Anthropic, whose input does not include what was read from the cache or written to it.

    What was written for an hour costs more. It is CACHE_WRITE_1H, which Weir reads where a contract declares that.
    """
    given = _plain(response)
    usage = given["usage"]
    cached, cache_write = (usage.get(f"cache_{name}_input_tokens") or 0 for name in ("read", "creation"))
    of_writes = usage.get("cache_creation") or {}
    tokens = {
        "input_tokens": usage["input_tokens"] + cached + cache_write,
        "output_tokens": usage["output_tokens"],
        "cached_tokens": cached,
        "cache_write_tokens": cache_write,
        CACHE_WRITE_1H: of_writes.get("ephemeral_1h_input_tokens") or None,
    }
    return usage_event(
        account=account, source=source, model=given["model"], response_id=given["id"], time=time, **{**tokens, **data}
    )


def litellm_callback(
    client: _Sender, *, source: str, account: Callable[[Mapping[str, Any]], str]
) -> Callable[[Mapping[str, Any], Any, datetime, datetime], None]:
    """A function for `litellm.success_callback`. `account` finds the account in LiteLLM's `kwargs` of the call.

    LiteLLM may call it for each chunk of a stream: only the whole response has usage.
    """

    def on_success(kwargs: Mapping[str, Any], response: Any, _started: datetime, ended: datetime) -> None:
        whole = kwargs.get("complete_streaming_response") or kwargs.get("async_complete_streaming_response")
        if kwargs.get("stream") and whole is None:
            return
        client.send(openai_usage(whole or response, account=account(kwargs), source=source, time=ended))

    return on_success


def _unique_id(response: Mapping[str, Any]) -> str | None:
    """The response's id, by which no other response is called; None where it has none."""
    given = str(_first(response.get("id"), ""))
    if not _SMALL_NUMBER.fullmatch(given):
        return given or None
    whole = json.dumps(response, sort_keys=True, default=str).encode()
    return f"{given}-{sha256(whole).hexdigest()[:24]}"


def _first(*values: Any) -> Any:
    """The first that is reported; 0 is."""
    return next((value for value in values if value is not None), None)


def _plain(response: Any) -> Mapping[str, Any]:
    """A response as its JSON: it is that already, or an object of pydantic's."""
    found: Mapping[str, Any] = response if isinstance(response, Mapping) else response.model_dump()
    return found
