"""Which chunks of a stream are parts of an answer, and which one is the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CHUNKS = ("chat.completion.chunk", "text_completion.chunk", "")
"""Parts of a stream. Azure has chunks without name and id that say what its content filter found."""
STREAMED = (*CHUNKS, "text_completion")
"""What may be a part of a stream: old completions are called so, whole or in parts."""
NOT_ENDED = (None, "", "FINISH_REASON_UNSPECIFIED")
"""What an answer that goes on has as `finish_reason`: SGLang and others write an empty text."""


def is_streamed(response: Mapping[str, Any]) -> bool:
    """Whether it may be a part of a stream. Perplexity calls each part as it calls a whole answer, with a delta."""
    return response.get("object") in STREAMED or any("delta" in choice for choice in response.get("choices") or ())


def response_of(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an event of OpenAI's responses or of realtime, such as `response.completed`, has of its response."""
    within = given.get("response")
    return within if isinstance(within, Mapping) and str(given.get("type")).startswith("response.") else given


def is_of_a_stream(given: Mapping[str, Any]) -> bool:
    """Whether it is a chunk, another event of a stream (images, speech, text), or a line of a batch's output.

    What is a response of its own has no `type`, and none of these without usage has any elsewhere.
    """
    return given.get("object") in CHUNKS or isinstance(given.get("type"), str) or "custom_id" in given


def is_open(answers: Sequence[Mapping[str, Any]] | None) -> bool:
    """Whether there are some, and none of them has ended or only fills a place."""
    return bool(answers) and not any(
        answer.get("finish_reason") not in NOT_ENDED or _is_placeholder(answer) for answer in answers or ()
    )


def _is_placeholder(choice: Mapping[str, Any]) -> bool:
    """Whether it is the one that OpenRouter and LiteLLM's proxy have in the last chunk, where OpenAI has none.

    It says nothing. vLLM may say as little in the middle of a stream, but then gives a role, an empty text or tokens.
    """
    delta = choice.get("delta")
    if delta is None or choice.get("token_ids") or any(delta[name] for name in delta.keys() - {"role"}):
        return False
    return "native_finish_reason" in choice or (delta.get("role") is None and delta.get("content") is None)
