"""A driver of billing as its own process, to be killed: it publishes `events.ordered`, and nothing else.

`python -m tests.streaming.ordering_driver POSTGRES KAFKA TABLES WAIT_SECONDS`
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from jobs.billing.config import BillingConfig
from jobs.billing.ordered.publishing import publishing_ordered
from jobs.billing.pipeline import JOB
from jobs.runtime.clock import MachineClock
from jobs.runtime.environment import Environment
from jobs.runtime.job import Context
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership

STEP_BYTES = 400
"""Steps of a few events, so that a kill comes within a generation."""


def main(postgres_url: str, bootstrap: str, tables: str, wait_seconds: int) -> None:
    wanted = {"wait_seconds": wait_seconds}
    config = BillingConfig.model_validate({"publish_every_seconds": 1, "ordered_events": wanted})
    where = Environment(
        kafka=KafkaAccess(bootstrap=bootstrap),
        postgres_url=postgres_url,
        tables=tables,
        checkpoints=Path(),
        jars=Path(),
    )
    ownership = Ownership.take(JOB.name, postgres_url, config.model_dump(mode="json"))
    no_spark: Any = None
    context = Context(config, where, no_spark, ownership, MachineClock(), Denials())
    with publishing_ordered(context, step_bytes=STEP_BYTES):
        print("runs", flush=True)
        while True:
            # As a driver that reports: whoever was followed ends.
            with ownership.transaction():
                pass
            time.sleep(1)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    except psycopg.Error as error:
        sys.exit(str(error))
