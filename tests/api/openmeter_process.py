"""OpenMeter's own Python SDK against an API, run where the SDK is installed and Weir is not.

`python openmeter_process.py ADDRESS ACCOUNT METER MODEL`, with the keys INGEST, READ and PORTAL in the environment.
Prints one JSON object: what each call returned.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from corehttp.exceptions import HttpResponseError
from openmeter import Client


def main() -> None:
    """Send events, ask for usage, and make and use a portal token."""
    address, account, meter, model = sys.argv[1:]
    with Client(address, os.environ["INGEST"]) as client:
        client.events.ingest_event(event(account, "1", time=datetime.now(UTC)))
        client.events.ingest_event(event(account, "2"))
        client.events.ingest_events([event(account, "3", time=datetime.now(UTC)), event(account, "4")])
    with Client(address, os.environ["READ"]) as client:
        found = {
            "meters": {row.slug: row.aggregation for row in client.meters.list()},
            "total": values(client.meters.query_json(meter, subject=["acme"])),
            "filtered": values(
                client.meters.query_json(meter, advanced_meter_group_by_filters={"model": {"$eq": model}})
            ),
            "unreadable": status(lambda: client.meters.query_json(meter, filter_group_by={"model": model})),
            "days": values(client.meters.query_json(meter, window_size="DAY", group_by=["subject", "model"])),
            "posted": values(client.meters.query(meter, {"windowSize": "HOUR", "subject": ["acme"]})),
            "csv": client.meters.query_csv(meter, window_size="HOUR", group_by=["model"], subject=["acme"]),
        }
    with Client(address, os.environ["PORTAL"]) as client:
        made = client.portal.portal_tokens.create({"subject": "acme", "allowedMeterSlugs": [meter]})
    with Client(address, made.token) as client:
        found["portal"] = values(client.portal.portal_meters.query_json(meter))
    with Client(address, os.environ["PORTAL"]) as client:
        client.portal.portal_tokens.invalidate({"subject": "acme"})
    with Client(address, made.token) as client:
        found["after"] = status_after(client, meter)
    print(json.dumps(found))


def status(call: Callable[[], object]) -> int:
    """Of the answer to a call."""
    try:
        call()
    except HttpResponseError as error:
        return error.status_code or 0
    return 200


def status_after(client: Client, meter: str) -> int:
    """With a token that was invalidated: of the first refusal; a server needs up to 5 seconds to know it."""
    for _ in range(100):
        if (found := status(lambda: client.portal.portal_meters.query_json(meter))) != 200:
            return found
        time.sleep(0.1)
    return 200


def event(account: str, name: str, **more: Any) -> dict[str, Any]:
    """As OpenMeter's guide writes it; without a time it is that of the receipt."""
    data = {"model": "gpt-4o", "request_id": f"{account}-{name}", "input_tokens": 7, "output_tokens": 2}
    return {
        "id": f"{account}-{name}",
        "source": "my-app",
        "specversion": "1.0",
        "type": "ai.inference.usage.v1",
        "subject": account,
        "data": {**data, "status": "completed"},
        **{key: value.isoformat() for key, value in more.items()},
    }


def values(answer: Any) -> list[Any]:
    """Value, subject and groups of each row."""
    return [[row.value, row.subject, dict(row.group_by or {})] for row in answer.data]


if __name__ == "__main__":
    main()
