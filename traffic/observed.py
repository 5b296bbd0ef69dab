"""What a run of traffic with incidents gives analytics to look at: its outcomes, what was planted, and its limits."""

from __future__ import annotations

from typing import Any

from traffic.generate import Traffic
from traffic.scenarios.incidents import limit_rows


def observed(traffic: Traffic) -> dict[str, Any]:
    """A JSON object:

    * `planted`: per incident its `kind`, the `account`, and the `api_key` whose calls it consists of;
    * `outcomes`: per request that was matched or abandoned `account, request_id, event_us` (microseconds since 1970)
      and, where it has them, its `columns` as views, patterns and watches name them;
    * `limits`: the rows of the catalog file that limits each account.
    """
    return {
        "planted": [
            {"kind": str(incident.kind), "account": incident.account, "api_key": incident.api_key}
            for incident in traffic.incidents
        ],
        "outcomes": [
            {
                "account": outcome.account,
                "request_id": outcome.request_id,
                "event_us": outcome.event_us,
                "columns": {
                    **outcome.texts,
                    "model": outcome.model,
                    "outcome": outcome.outcome,
                    "latency_ms": outcome.latency_ms,
                    "output_tokens": outcome.reported.get("output_tokens"),
                },
            }
            for outcome in traffic.outcomes
            if outcome.outcome in ("matched", "abandoned") and outcome.is_of_request
        ],
        "limits": limit_rows(traffic.catalog),
    }
