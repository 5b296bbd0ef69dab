"""What is seen while faults strike: how far billing is, every second, and in the end which alerts fired."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import psycopg
from deltalake import DeltaTable

from deployment.positions import Positions
from deployment.stack import Deployment
from jobs.streams import Table
from metering.vocabulary import ALWAYS, Job

EVERY_SECONDS = 1.0
WRITTEN = {Job.INGESTION: Table.JOURNAL, Job.JOINS: Table.USAGE}


@dataclass(frozen=True)
class Stall:
    """A time without new usage in the windows. `began_seconds` is since the traffic began."""

    began_seconds: float = 0.0
    seconds: float = 0.0


class Progress:
    """Asks Postgres, past its proxy, up to which row of usage billing has folded.

    A time in which Postgres does not answer is one in which nothing is folded. Records wait at any moment: they come
    steadily, until `stop`.
    """

    def __init__(self, postgres_url: str) -> None:
        limits = "connect_timeout=2&options=-c%20statement_timeout%3D2000"
        self._url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}{limits}"
        self._stopping = threading.Event()
        self._began = self._moved_at = time.monotonic()
        self.position = 0
        self.longest = Stall()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._began = self._moved_at = time.monotonic()
        self._thread.start()

    @property
    def stalled_seconds(self) -> float:
        """For how long nothing was folded, until now."""
        return time.monotonic() - self._moved_at

    def stop(self) -> Stall:
        """The longest stall there was."""
        self._stopping.set()
        self._thread.join()
        self._note(time.monotonic())
        return self.longest

    def _watch(self) -> None:
        while not self._stopping.wait(EVERY_SECONDS):
            position = self._folded()
            if position is not None and position > self.position:
                now = time.monotonic()
                self._note(now)
                self.position, self._moved_at = position, now

    def _note(self, now: float) -> None:
        if (seconds := now - self._moved_at) > self.longest.seconds:
            self.longest = Stall(round(self._moved_at - self._began, 1), round(seconds, 1))

    def _folded(self) -> int | None:
        try:
            with psycopg.connect(self._url, autocommit=True) as database:
                row = database.execute("SELECT next_position FROM positions WHERE job = 'billing'").fetchone()
        except psycopg.Error:
            return None
        return None if row is None else int(row[0])


def commits(deployment: Deployment) -> dict[str, int]:
    """How often each application has committed until now: what a run is worth in which faults met nobody at work."""
    with psycopg.connect(deployment.postgres_url) as database:
        folded: dict[str, int] = dict(database.execute("SELECT job, count(*) FROM batches GROUP BY job").fetchall())
    written = {job: DeltaTable(f"{deployment.tables}/{table}").version() for job, table in WRITTEN.items()}
    return {job: (written | folded).get(job, 0) for job in ALWAYS}


def positions(deployment: Deployment) -> list[int]:
    """How far everything is: what the tables hold, and what the folding applications have taken up."""
    read = Positions(deployment.tables, deployment.postgres_url)
    return [*map(read.next_lsn, WRITTEN.values()), *map(read.folded, (Job.SESSIONIZATION, Job.BILLING))]


def fired(prometheus_url: str, since: datetime, until: datetime) -> set[str] | None:
    """Names of the alerts that fired at any time between; None where no Prometheus runs."""
    if not prometheus_url:
        return None
    span = {"start": since.timestamp(), "end": until.timestamp(), "step": "5s"}
    query = urlencode({"query": 'ALERTS{alertstate="firing"}', **span})
    with urlopen(f"{prometheus_url}/api/v1/query_range?{query}", timeout=30) as answer:
        series: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return {each["metric"]["alertname"] for each in series}
