"""`python -m laptop.connect_worker URL CONNECTOR JAVA…`: a Connect worker, and its connector kept running.

A worker forgets no connector, but does not restart one that has failed: something else must, as an operator does
on a cluster. Only the standard library, because this process stays for as long as the worker.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STEP_SECONDS = 2.0
FIRST_STEPS_SECONDS = 0.2
REQUEST_SECONDS = 10.0


class Worker:
    """A worker as its REST interface shows it. Raises `urllib.error.URLError` or `OSError` while it does not answer."""

    def __init__(self, url: str, name: str, config: Mapping[str, str]) -> None:
        self._place = f"{url}/connectors/{name}"
        self._config = dict(config)

    def keep(self) -> str | None:
        """Configure the connector unless it is so already, and start again what failed of it; why it had failed."""
        if self._ask("GET", "/config") != {**self._config, "name": self._place.rpartition("/")[2]}:
            self._ask("PUT", "/config", self._config)
            return None
        status = self._ask("GET", "/status") or {}
        parts = [status.get("connector", {}), *status.get("tasks", ())]
        failed = [part for part in parts if part.get("state") == "FAILED"]
        if not failed:
            return None
        self._ask("POST", "/restart?includeTasks=true&onlyFailed=true")
        return reasons(failed[0].get("trace") or "it gives no reason")

    def _ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        """The answer; None where there is no such thing, or no answer, or where the worker is just dealing its work."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._place + path, method=method, data=data, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
                answered = answer.read()
        except urllib.error.HTTPError as problem:
            if problem.code in (404, 409):
                return None
            raise
        return json.loads(answered) if answered else None


def reasons(trace: str) -> str:
    """The reasons in a Java stack trace, without places: each exception and its cause, in one line."""
    lines = [line.removeprefix("Caused by: ") for line in trace.splitlines() if not line.startswith(("\t", " "))]
    return "the connector failed: " + ", because ".join(line for line in lines if line)


def main(arguments: Sequence[str]) -> int:
    """Run the worker until it ends; its exit status. SIGTERM ends it cleanly."""
    url, file, *java = arguments
    wanted = json.loads(Path(file).read_text(encoding="utf-8"))
    worker = Worker(url, wanted["name"], wanted["config"])
    process = subprocess.Popen(java)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.terminate())
    pause_seconds, last_reason = FIRST_STEPS_SECONDS, None
    while True:
        try:
            return process.wait(pause_seconds)
        except subprocess.TimeoutExpired:
            pass
        try:
            reason = worker.keep()
        except (OSError, ValueError) as problem:
            reason = str(problem) if pause_seconds == STEP_SECONDS else None
        else:
            pause_seconds = STEP_SECONDS
        if reason is not None and reason != last_reason:
            print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {reason}", file=sys.stderr, flush=True)
        last_reason = reason


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
