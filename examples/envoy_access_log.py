"""Send Weir what Envoy AI Gateway writes to its access log: each line with tokens is a call that its account pays for.

python examples/envoy_access_log.py API OUTBOX < access.log        The key is in WEIR_KEY. Killed anywhere, give it the
same lines again: the id of an event is the request's, so nothing is billed twice.
"""

import json
import os
import sys

from weir_client import Client, usage_event

SOURCE = "envoy-ai-gateway"
ACCOUNT, REQUEST, RECEIVED = "x-account", "x-request-id", "start_time"
INPUT, OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
READ, WRITTEN = "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_write.input_tokens"  # within the input

with Client(sys.argv[1], os.environ["WEIR_KEY"], outbox=sys.argv[2]) as client:
    for line in sys.stdin:
        call = json.loads(line)
        if call.get(INPUT) is None and call.get(OUTPUT) is None:
            continue  # no model was called, or it failed before it counted
        event = usage_event(
            account=call[ACCOUNT] or "unknown",  # its usage is listed as unpriced, and not lost
            source=SOURCE,
            model=call["gen_ai.response.model"] or call["gen_ai.request.model"],
            response_id=call[REQUEST],
            input_tokens=call.get(INPUT),
            output_tokens=call.get(OUTPUT),
            cached_tokens=call.get(READ),
            cache_write_tokens=call.get(WRITTEN),
        )
        client.send({**event, "time": call[RECEIVED]})
    client.flush()
