"""The shared stack with alerts that need not wait: an hour of a rule is a minute here, and every second is scraped."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen
from uuid import uuid4

import yaml
from confluent_kafka import Producer

from deployment.stack import Stack, running_stack
from monitoring.alerts import GROUPS
from monitoring.rule_file import Part, rule_file
from tests.waiting import wait_until

SCALE = 1 / 60
SILENT_AFTER_SECONDS = 20
SETTINGS: dict[str, dict[str, Any]] = {
    "ingestion": {"source_silent_after_seconds": SILENT_AFTER_SECONDS},
    "billing": {"late_policy": dict.fromkeys(("requests", "input_tokens", "output_tokens", "cached_tokens"), "drop")},
}
"""What differs from the defaults while the alerts are tested."""
STEADY_SOURCE = "gateway/steady"
STEADY_EPOCH = "1"


class Watch:
    """What Prometheus and Alertmanager say."""

    def __init__(self, stack: Stack) -> None:
        self._prometheus = stack.prometheus_url
        self._alertmanager = stack.alertmanager_url

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        alerts = _get(f"{self._prometheus}/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def falls_silent(self, when: str, seconds: float = 120) -> None:
        """Wait until no alert fires; an error names those that still do."""
        try:
            wait_until(lambda: self.firing() == set(), when, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {sorted(self.firing())} fire") from None

    def is_quiet(self) -> bool:
        """Whether no alert fires or is about to."""
        return not _get(f"{self._prometheus}/api/v1/alerts")["data"]["alerts"]

    def told(self) -> set[str]:
        """Names of the alerts that Alertmanager would tell of now."""
        return {alert["labels"]["alertname"] for alert in _get(f"{self._alertmanager}/api/v2/alerts?active=true")}

    def value(self, series: str, **labels: str) -> float | None:
        """The last value of one series; None without one."""
        matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
        answer = _get(f"{self._prometheus}/api/v1/query?{urlencode({'query': f'{series}{{{matchers}}}'})}")
        return next((float(found["value"][1]) for found in answer["data"]["result"]), None)

    def fired_since(self, start: datetime) -> set[str]:
        """Names of all alerts that fired at any second since `start`."""
        span = {"start": start.timestamp(), "end": time.time(), "step": "1s"}
        query = urlencode({"query": 'ALERTS{alertstate="firing"}', **span})
        answer = _get(f"{self._prometheus}/api/v1/query_range?{query}")
        return {series["metric"]["alertname"] for series in answer["data"]["result"]}


class Traffic:
    """Sends usage events of one account, each with a price; healthy ones twice a second until it is stopped."""

    def __init__(self, stack: Stack, account: str) -> None:
        self._producer = Producer({"bootstrap.servers": stack.kafka_bootstrap})
        self._account = account
        self._beating: set[str] = {STEADY_SOURCE}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def send(
        self,
        occurred_at: datetime,
        *,
        source: str = STEADY_SOURCE,
        input_tokens: int = 100,
        sequence: int | None = None,
    ) -> None:
        """One event; with a sequence number it is of the source's epoch STEADY_EPOCH."""
        key = uuid4().hex
        data = {"request_id": key, "user_id": "u", "model": "m", "operation": "chat", "status": "completed"}
        tokens = {"input_tokens": input_tokens, "output_tokens": 10, "usage_source": "provider"}
        event = {"specversion": "1.0", "type": "ai.inference.usage.v1", "source": source, "id": key}
        named = {"subject": self._account, "time": occurred_at.isoformat()}
        numbered = {} if sequence is None else {"sequence": sequence, "sourceepoch": STEADY_EPOCH}
        self.send_bytes(json.dumps({**event, **named, **numbered, "data": {**data, **tokens}}).encode())

    def send_bytes(self, value: bytes) -> None:
        """One record, whatever it is."""
        self._producer.produce("events", value, self._account.encode())
        self._producer.poll(0)

    def keep_sending_from(self, source: str) -> None:
        """From now on this source sends too."""
        self._beating = {*self._beating, source}

    def _run(self) -> None:
        for number in count():
            if self._stopped.wait(0.5):
                return
            for source in self._beating:
                self.send(datetime.now(UTC), source=source, sequence=number)

    @contextmanager
    def steady(self) -> Iterator[Traffic]:
        """Healthy traffic for as long as the block lasts."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._thread.join()
            self._producer.flush(60)


@contextmanager
def hurried(stack: Stack) -> Iterator[None]:
    """Let rules and applications of the stack run with short times, and put everything back at the end."""
    folder = stack.data_dir / "prometheus"
    kept = {file: file.read_text() for file in (folder / "weir.rules.yaml", folder / "prometheus.yml")}
    kept |= {file: file.read_text() for file in (stack.data_dir / "config" / f"{job}.yaml" for job in SETTINGS)}
    config = yaml.safe_load(kept[folder / "prometheus.yml"])
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    try:
        (folder / "weir.rules.yaml").write_text(rule_file(GROUPS, SCALE, disabled=[Part.ANALYTICS]))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        _reload(stack)
        for job, settings in SETTINGS.items():
            file = stack.data_dir / "config" / f"{job}.yaml"
            file.write_text(yaml.safe_dump({**yaml.safe_load(kept[file]), **settings}))
        start_again(stack, *SETTINGS)
        yield
    finally:
        for file, text in kept.items():
            file.write_text(text)
        _reload(stack)
        start_again(stack, *SETTINGS)


def start_again(stack: Stack, *jobs: str) -> None:
    """End drivers, and wait until the supervisor's next ones work."""
    running = {job: running_stack(stack.data_dir).process(job) for job in jobs}
    for process in running.values():
        assert process.process is not None
        os.killpg(process.process.pid, signal.SIGKILL)
    for job, process in running.items():
        wait_until(partial(works_again, stack, job, process.restarts), f"{job} being started again")


def works_again(stack: Stack, job: str, restarts: int) -> bool:
    """Whether a driver runs that is not one of the first `restarts` starts."""
    process = running_stack(stack.data_dir).process(job)
    return process.restarts > restarts and process.state == "running"


def ago(**span: float) -> datetime:
    """An instant before now."""
    return datetime.now(UTC) - timedelta(**span)


def _reload(stack: Stack) -> None:
    with urlopen(Request(f"{stack.prometheus_url}/-/reload", method="POST"), timeout=60) as answer:
        assert answer.status == 200


def _get(url: str) -> Any:
    with urlopen(url, timeout=60) as answer:
        return json.load(answer)
