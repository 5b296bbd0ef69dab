"""A call of LiteLLM with its own OpenMeter callback, run where LiteLLM is installed and Weir is not.

`python litellm_process.py ACCOUNT`, with OPENMETER_API_ENDPOINT and OPENMETER_API_KEY. LiteLLM answers the call itself
(`mock_response`), as its tests do, and runs its callbacks as after any other call. Prints the tokens that it counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import litellm

CALLBACKS_WITHIN_SECONDS = 10.0


def main() -> None:
    """Call a model twice, once with a stream, and again as the proxy does, by asyncio."""
    (account,) = sys.argv[1:]
    litellm.callbacks = ["openmeter"]
    call = {"model": "gpt-4o", "messages": [{"role": "user", "content": "What is a weir?"}], "user": account}
    answer = litellm.completion(**call, mock_response="A low dam.")
    stream = litellm.completion(
        **call, mock_response="It measures the flow.", stream=True, stream_options={"include_usage": True}
    )
    usages = [answer.usage, *(chunk.usage for chunk in stream if getattr(chunk, "usage", None))]
    usages.append(asyncio.run(call_in_loop(call)))
    print(json.dumps([[usage.prompt_tokens, usage.completion_tokens] for usage in usages]), flush=True)
    time.sleep(CALLBACKS_WITHIN_SECONDS)  # they run in threads that end with the process


async def call_in_loop(call: dict[str, Any]) -> litellm.Usage:
    """The usage of a call in an event loop, which lasts until its callbacks have run."""
    answer = await litellm.acompletion(**call, mock_response="A dam that water runs over.")
    await asyncio.sleep(CALLBACKS_WITHIN_SECONDS / 2)
    return answer.usage


if __name__ == "__main__":
    main()
