"""Events that the Python client posts while faults strike the API and what is behind it: each is billed once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import psycopg
from deltalake import DeltaTable

from api import key_store
from deployment.stack import Deployment
from jobs.streams import Table
from metering.api_keys import Scope
from tests.faults.stage import Stage
from weir_client import Client, usage_event

SOURCE = "faults/posted"
BETWEEN_SECONDS = 0.05
PATIENCE_SECONDS = 600.0


@dataclass(frozen=True)
class PostedFound:
    """Of the events that were on disk: those in no row of usage, those in several, and how many are on the bill."""

    events: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    billed: int


class Posting:
    """Posts in a thread until `finish`."""

    def __init__(self, stage: Stage, *, seed: int, folder: Path) -> None:
        self._account = f"posted-{seed}"
        key = key_store.create(stage.deployment.postgres_url, [Scope.INGEST], "faults").key
        self._client = Client(stage.stack().api_url, key, outbox=folder / "outbox")
        self._dead = folder / "outbox.dead.jsonl"
        self._promised: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._post, name="posting", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self) -> None:
        """Stop, and wait until the API has taken everything. Raises NotFlushed."""
        self._stopping.set()
        self._thread.join()
        self._client.flush(PATIENCE_SECONDS)
        self._client.close()

    def found(self, deployment: Deployment) -> PostedFound:
        """What became of them, once all is decided and billed."""
        rows = DeltaTable(f"{deployment.tables}/{Table.USAGE}").to_pyarrow_dataset()
        usage = rows.to_table(columns=["account", "request_id"]).to_pylist()
        decided = (row["request_id"] for row in usage if row["account"] == self._account)
        with psycopg.connect(deployment.postgres_url) as database:
            billed = database.execute(
                "SELECT coalesce(sum(quantity), 0) FROM usage_windows WHERE account = %s AND meter = 'requests'",
                [self._account],
            ).fetchone()
        assert billed is not None
        rejected = self._dead.read_text().splitlines() if self._dead.exists() else []
        return compared(self._promised, decided, int(billed[0]), rejected)

    def _post(self) -> None:
        while not self._stopping.wait(BETWEEN_SECONDS):
            name = f"{self._account}-{len(self._promised)}"
            event = usage_event(
                account=self._account, source=SOURCE, model="posted", response_id=name, input_tokens=7, output_tokens=1
            )
            self._client.send(event)
            self._promised.append(name)


def compared(
    promised: Collection[str], decided: Iterable[str], billed: int, rejected: Collection[str] = ()
) -> PostedFound:
    """Of ids that were on disk, and those that were decided, each as often as it was; `rejected`: of the dead file."""
    counts = Counter(decided)
    lost = [name for name in promised if name not in counts]
    return PostedFound(
        len(promised),
        (*lost, *rejected),
        tuple(name for name, count in counts.items() if count > 1 or name not in set(promised)),
        billed,
    )
