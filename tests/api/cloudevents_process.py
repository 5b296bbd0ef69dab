"""CloudEvents' own Python SDK: events as it writes them, run where the SDK is installed and Weir is not.

`python cloudevents_process.py ACCOUNT` prints a JSON array: for each message its binding, headers and body in base64.
Messages are of the SDK's present interface and of that of 1.x, which 2.x keeps.
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from typing import Any

from cloudevents.core.bindings import http, kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1 import conversion
from cloudevents.v1 import http as http_1
from cloudevents.v1 import kafka as kafka_1

DATA = {"request_id": "r", "model": "gpt-4o", "status": "completed", "input_tokens": 7}


def main() -> None:
    """One event in every form."""
    (account,) = sys.argv[1:]
    attributes: dict[str, Any] = {"type": "ai.inference.usage.v1", "source": "/my app/ü", "subject": account, "id": "1"}
    event = CloudEvent({**attributes, "specversion": "1.0", "time": datetime.now(UTC)}, DATA)
    in_json = {"datacontenttype": "application/json"}  # 1.x writes no record in binary mode without it
    earlier = http_1.CloudEvent(
        {**attributes, **in_json, "time": event.get_time().isoformat().replace("+00:00", "Z")}, DATA
    )
    print(
        json.dumps(
            [
                *(shown("http", *message(to(event, JSONFormat()))) for to in (http.to_structured, http.to_binary)),
                *(shown("kafka", *message(to(event, JSONFormat()))) for to in (kafka.to_structured, kafka.to_binary)),
                *(shown("http", *to(earlier)) for to in (conversion.to_structured, conversion.to_binary)),
                *(shown("kafka", *message(to(earlier))) for to in (kafka_1.to_structured, kafka_1.to_binary)),
            ]
        )
    )


def message(written: Any) -> tuple[dict[str, Any], bytes]:
    """Headers and body of an HTTP message or a record."""
    return written.headers, written.body if hasattr(written, "body") else written.value


def shown(binding: str, headers: dict[str, Any], body: bytes) -> list[Any]:
    """As JSON."""
    texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in headers.items()}
    return [binding, texts, base64.b64encode(body).decode()]


if __name__ == "__main__":
    main()
