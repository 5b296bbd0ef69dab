"""What providers count of a call → the quantities of Weir's contract, of which no two parts share a token.

A quantity that no shipped contract has, such as CACHE_WRITE_1H, is read where a contract declares its column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

CACHED = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens", "num_cached_tokens")
"""What was read from the cache, where a compatible API does not report it as OpenAI does."""
CACHE_WRITE_1H, CACHE_WRITE_12H = "cache_write_1h_tokens", "cache_write_12h_tokens"
"""Parts of what was written to the cache: what stays for longer costs more."""
WEB_SEARCHES, AUDIO_SECONDS, CITATIONS = "web_search_requests", "audio_seconds", "citation_tokens"
CONNECTORS = "connector_tokens"
"""What searches and other tools gave a model in a conversation of Mistral's, beside the prompt."""
MODALITIES = ("image", "audio")
PROMPT, COMPLETION = ("prompt", "input"), ("completion", "output")
"""How the two sides of a call are called: by chat completions, and by responses."""
Tokens = dict[str, Any]
"""Quantity → its number; None: not reported."""
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def openai_tokens(usage: Mapping[str, Any], *, has_no_output: bool = False, is_gemini: bool = False) -> Tokens:
    """Of the `usage` of OpenAI, or of a compatible API or gateway.

    The input includes what the cache gave or took; where the total of all tokens proves that it does not, it is added.
    `has_no_output`: of embeddings or a reranking. `is_gemini`: the total of all tokens has thoughts, unless there are
    details of the output.
    """
    read, written = _details_of_input(usage), _details(usage, *COMPLETION)
    # DeepSeek, Moonshot and LiteLLM count these beside the details. Anthropic's own input does not include them.
    named = usage if "prompt_tokens" in usage else {}
    # A number of that name is none of these: it says no duration.
    by_duration = (read.get(name) for name in ("cache_creation_token_details", "cache_creation"))
    of_writes = next((found for found in by_duration if found and isinstance(found, Mapping)), {})
    of_retention = read.get("cache_write_tokens_details") or {}
    taken = _counted(usage, *PROMPT)
    if has_no_output:
        taken = first(taken, usage.get("total_tokens"))  # Voyage, Jina and vLLM report nothing else
    tokens = {
        "input_tokens": taken,
        "output_tokens": _counted(usage, *COMPLETION),
        "cached_tokens": first(read.get("cached_tokens"), *(named.get(name) for name in CACHED)),
        "cache_write_tokens": first(
            *(read.get(f"cache_{kind}") for kind in ("write_tokens", "creation_tokens", "creation_input_tokens")),
            named.get("cache_creation_input_tokens"),
        ),
        CACHE_WRITE_1H: of_writes.get("ephemeral_1h_input_tokens") or None,
        CACHE_WRITE_12H: of_retention.get("ttl_12h_tokens") or of_writes.get("ephemeral_12h_input_tokens") or None,
        **{f"{modality}_input_tokens": read.get(f"{modality}_tokens") for modality in MODALITIES},
        # SGLang and Perplexity have them beside the details.
        "reasoning_tokens": first(written.get("reasoning_tokens"), usage.get("reasoning_tokens")),
        **{f"{modality}_output_tokens": written.get(f"{modality}_tokens") for modality in MODALITIES},
        WEB_SEARCHES: first(
            (usage.get("server_tool_use") or {}).get("web_search_requests"),
            (usage.get("server_side_tool_usage_details") or {}).get("web_search_calls"),
            read.get("web_search_requests"),
            usage.get("num_search_queries"),
            (usage.get("connectors") or {}).get("web_search"),
            ((usage.get("x_tools") or {}).get("web_search") or {}).get("count"),
            ((usage.get("plugins") or {}).get("search") or {}).get("count"),
        ),
        # Mistral writes {} where there is no audio.
        AUDIO_SECONDS: first(usage.get("seconds"), usage.get("prompt_audio_seconds") or None),
        CITATIONS: usage.get("citation_tokens"),
        CONNECTORS: usage.get("connector_tokens"),
    }
    if has_no_output and usage and tokens["output_tokens"] is None:
        tokens["output_tokens"] = 0  # that is no missing report
    # LiteLLM has what tools gave Gemini within the prompt where it is billed, else in the total alone.
    beside = max(_beside(tokens, usage.get("total_tokens")) - (read.get("tool_use_tokens") or 0), 0)
    thoughts = tokens["reasoning_tokens"] or 0
    if beside > 0 and (beside == thoughts or (is_gemini and not written)):
        tokens = _with_thoughts(tokens, beside)
    elif beside > thoughts > (tokens["output_tokens"] or 0):
        # More than the output is no part of it. Portkey's total also has what tools gave Gemini.
        tokens = _with_thoughts(tokens, thoughts)
    elif 0 < beside == (tokens["cached_tokens"] or 0) + (tokens["cache_write_tokens"] or 0):
        tokens["input_tokens"] += beside  # Portkey counts Anthropic's as Anthropic does
    elif thoughts > (tokens["output_tokens"] or 0) and _is_all(tokens, usage.get("total_tokens")):
        # Gateways to Bedrock estimate it, with the tokens of another model.
        tokens["reasoning_tokens"] = tokens["output_tokens"]
    return _disjoint(tokens, read.get("cached_tokens_details") or {})


def anthropic_tokens(usage: Mapping[str, Any]) -> Tokens:
    """Of the `usage` of Anthropic, whose input does not include what was read from the cache or written to it.

    Compactions of the context are billed, too, and only listed. Raises KeyError where a message has no count.
    """
    compactions = [part for part in usage.get("iterations") or () if part.get("type") == "compaction"]
    every = [usage, *compactions]
    cached, cache_write = (_sum(every, f"cache_{name}_input_tokens") for name in ("read", "creation"))
    of_writes = [part.get("cache_creation") or {} for part in every]
    return {
        "input_tokens": usage["input_tokens"] + _sum(compactions, "input_tokens") + cached + cache_write,
        "output_tokens": usage["output_tokens"] + _sum(compactions, "output_tokens"),
        "cached_tokens": cached,
        "cache_write_tokens": cache_write,
        CACHE_WRITE_1H: _sum(of_writes, "ephemeral_1h_input_tokens") or None,
        "reasoning_tokens": (usage.get("output_tokens_details") or {}).get("thinking_tokens"),
        WEB_SEARCHES: (usage.get("server_tool_use") or {}).get("web_search_requests"),
    }


def gemini_searches(candidates: Iterable[Mapping[str, Any]]) -> int:
    """How many searches Google charges for: different queries that are not empty."""
    found = [(candidate.get("grounding_metadata") or {}).get("web_search_queries") or () for candidate in candidates]
    return len({query for queries in found for query in queries if query})


def gemini_tokens(usage: Mapping[str, Any], *, bills_tool_input: bool = True) -> Tokens:
    """Of the usage metadata of Gemini, in snake case, which counts thoughts beside the output.

    What tools give the model is input beside the prompt. Where Google's own search gave it, it costs nothing:
    `bills_tool_input` False.
    """
    tools = usage.get("tool_use_prompt_token_count") if bills_tool_input else None
    thoughts = usage.get("thoughts_token_count")
    written = first(usage.get("candidates_token_count"), usage.get("response_token_count"))
    read = [
        *(usage.get("prompt_tokens_details") or ()),
        *((tools and usage.get("tool_use_prompt_tokens_details")) or ()),
    ]
    produced = first(usage.get("candidates_tokens_details"), usage.get("response_tokens_details")) or ()
    cached = usage.get("cache_tokens_details") or ()
    tokens = {
        "input_tokens": _total(usage.get("prompt_token_count"), tools),
        "output_tokens": _total(written, thoughts),
        "cached_tokens": usage.get("cached_content_token_count"),
        **{f"{modality}_input_tokens": _of_modality(read, modality) for modality in MODALITIES},
        "reasoning_tokens": thoughts,
        **{f"{modality}_output_tokens": _of_modality(produced, modality) for modality in MODALITIES},
    }
    return _disjoint(tokens, {f"{modality}_tokens": _of_modality(cached, modality) for modality in MODALITIES})


def metadata_of_interaction(usage: Mapping[str, Any]) -> Mapping[str, Any]:
    """The usage of an interaction of Gemini's, by the names of `generateContent`'s usage metadata."""
    totals = {"prompt": "input", "cached_content": "cached", "candidates": "output", "thoughts": "thought"}
    lists = {"prompt": "input", "cache": "cached", "candidates": "output", "tool_use_prompt": "tool_use"}
    return {
        **{f"{name}_token_count": usage.get(f"total_{of}_tokens") for name, of in totals.items()},
        "tool_use_prompt_token_count": usage.get("total_tool_use_tokens"),
        **{
            f"{name}_tokens_details": [
                {"modality": part.get("modality"), "token_count": part.get("tokens")}
                for part in usage.get(f"{of}_tokens_by_modality") or ()
            ]
            for name, of in lists.items()
        },
    }


def snake(document: Any) -> Any:
    """A JSON document with its names as Python's: `promptTokenCount` is `prompt_token_count`."""
    if isinstance(document, Mapping):
        return {_CAPITAL.sub("_", name).lower(): snake(value) for name, value in document.items()}
    return [snake(value) for value in document] if isinstance(document, list) else document


def first(*values: Any) -> Any:
    """The first that is reported; 0 is."""
    return next((value for value in values if value is not None), None)


def _counted(usage: Mapping[str, Any], *sides: str) -> Any:
    """What one side of a call took. LiteLLM has the counts of a batch in one form, and 0 in the other."""
    reported = [usage.get(f"{side}_tokens") for side in sides]
    return first(*(count for count in reported if count), *reported)


def _details(usage: Mapping[str, Any], *sides: str) -> Mapping[str, Any]:
    """Of one side of a call, in the form that has its count. Realtime's are of `token`, not of `tokens`."""
    sides = tuple(sorted(sides, key=lambda side: not usage.get(f"{side}_tokens")))
    names = [f"{side}_{tokens}_details" for side in sides for tokens in ("tokens", "token")]
    return next((usage[name] for name in names if usage.get(name)), {})


def _details_of_input(usage: Mapping[str, Any]) -> Mapping[str, Any]:
    """Qwen's responses have what the cache took, and at times what it gave, in a list of their own."""
    found = _details(usage, *PROMPT)
    listed = (part.get("prompt_tokens_details") for part in usage.get("x_details") or ())
    more: Mapping[str, Any] = next((details for details in listed if details), {})
    return {**more, **{name: count for name, count in found.items() if count or name not in more}}


def _disjoint(tokens: Tokens, cached: Mapping[str, Any]) -> Tokens:
    """Each token of the input in one part: those of a modality that came from the cache are cached tokens.

    Where nobody says which of them did, these are as many as the parts are more than the whole.
    """
    found = dict(tokens)
    for modality in MODALITIES:
        name = f"{modality}_input_tokens"
        if found[name]:
            found[name] = max(found[name] - (cached.get(f"{modality}_tokens") or 0), 0)
    if found["input_tokens"] is None:
        return found
    parts = ("cached_tokens", "cache_write_tokens", *(f"{modality}_input_tokens" for modality in MODALITIES))
    beyond = sum(found.get(name) or 0 for name in parts) - found["input_tokens"]
    for name in (f"{modality}_input_tokens" for modality in MODALITIES):
        if beyond > 0 and found[name]:
            both = min(found[name], beyond)
            found[name], beyond = found[name] - both, beyond - both
    return found


def _beside(tokens: Tokens, total: int | None) -> int:
    """How many tokens a total has that are in neither input nor output; 0 where that is not known.

    xAI counts its reasoning so, and Gemini's compatible API shows it there alone. Others have something else: Mistral
    audio. Perplexity's total lacks what it reasons before the answer, too, where it counts what it cites.
    """
    taken, written = tokens["input_tokens"], tokens["output_tokens"]
    if tokens[CITATIONS] is not None and written is not None:
        return tokens["reasoning_tokens"] or 0
    return 0 if None in (taken, written, total) else total - taken - written


def _is_all(tokens: Tokens, total: int | None) -> bool:
    """Whether input and output are all that a total has."""
    counts = (tokens["input_tokens"], tokens["output_tokens"])
    return None not in (*counts, total) and sum(counts) == total


def _with_thoughts(tokens: Tokens, beside: int) -> Tokens:
    """With an output that includes its reasoning."""
    return {**tokens, "output_tokens": tokens["output_tokens"] + beside, "reasoning_tokens": beside}


def _sum(parts: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(part.get(name) or 0 for part in parts)


def _total(*counts: int | None) -> int | None:
    reported = [count for count in counts if count is not None]
    return sum(reported) if reported else None


def _of_modality(details: Iterable[Mapping[str, Any]], modality: str) -> int | None:
    return _total(
        *(part.get("token_count") for part in details if str(part.get("modality")).lower().endswith(modality))
    )
