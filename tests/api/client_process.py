"""A program that uses the Python client, to be killed: it prints the id of each event that `send` has returned for.

`python -m tests.api.client_process URL OUTBOX PREFIX COUNT DELIVERY [SECONDS_BETWEEN]`, with the key in WEIR_KEY. After
COUNT events it flushes, and prints `flushed`.
"""

from __future__ import annotations

import os
import sys
import time

from weir_client import Client, Delivery, usage_event

BETWEEN_SECONDS = 0.002


def main() -> None:
    """Send the events of one run."""
    url, outbox, prefix, count, delivery, *between = sys.argv[1:]
    between_seconds = float(between[0]) if between else BETWEEN_SECONDS
    with Client(url, os.environ["WEIR_KEY"], outbox=outbox, delivery=Delivery(delivery)) as client:
        for number in range(int(count)):
            mark = f"{prefix}-{number}"
            client.send(usage_event(account=prefix, source="client", model="gpt-4o", response_id=mark, input_tokens=7))
            print(mark, flush=True)
            time.sleep(between_seconds)
        client.flush(60)
        print("flushed", flush=True)


if __name__ == "__main__":
    main()
