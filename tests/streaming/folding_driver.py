"""A driver of billing as its own process, to be killed: real folds and the real publisher, on usage made up by number.

`python -m tests.streaming.folding_driver POSTGRES KAFKA LAST`: folds usage up to the lsn LAST, goes on publishing.
"""

from __future__ import annotations

import random
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB
from jobs.billing.publishing import publishing
from jobs.runtime.clock import MachineClock
from jobs.runtime.environment import Environment
from jobs.runtime.job import Context, Fold
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import stage
from metering.windows import MINUTE
from tests.pipelines.billing import CHEAP, NOON, built, usage_row

CONFIG = BillingConfig(publish_every_seconds=1)
LATE = timedelta(seconds=CONFIG.grace_seconds) + MINUTE
BETWEEN_BATCHES_SECONDS = 0.02


def usage(lsn: int) -> dict[str, Any]:
    """The row of this lsn: of one of a few windows, one in five of them after grace."""
    chance = random.Random(lsn)
    return usage_row(
        lsn,
        NOON + chance.randint(0, 9) * MINUTE,
        LATE if chance.random() < 0.2 else timedelta(seconds=1),
        price=chance.choice([None, CHEAP]),
        account=f"account-{chance.randint(0, 4)}",
        model=chance.choice([None, "sonnet", "opus"]),
    )


def fold_next(ownership: Ownership, last: int) -> bool:
    """Fold a few rows from where the position is. False when all are folded."""
    with ownership.transaction() as cursor:
        found = cursor.execute("SELECT next_position FROM positions WHERE job = 'billing'").fetchone()
        first = found[0] if found else 1
        if first > last:
            return False
        end = min(last + 1, first + random.Random(-first).randint(1, 30))
        stage(cursor, JOB.staged, built([usage(lsn) for lsn in range(first, end)], CONFIG))
        JOB.fold(cursor, CONFIG, Fold(None, None, end))
        cursor.execute(
            """INSERT INTO positions (job, input, next_position) VALUES ('billing', 'usage', %s)
               ON CONFLICT (job, input) DO UPDATE SET next_position = excluded.next_position""",
            [end],
        )
    return True


def main(postgres_url: str, bootstrap: str, last: int) -> None:
    where = Environment(
        kafka=KafkaAccess(bootstrap=bootstrap),
        postgres_url=postgres_url,
        tables="",
        checkpoints=Path(),
        jars=Path(),
    )
    ownership = Ownership.take(JOB.name, postgres_url, CONFIG.model_dump(mode="json"))
    no_spark: Any = None
    with publishing(Context(CONFIG, where, no_spark, ownership, MachineClock(), Denials())):
        print("runs", flush=True)
        while fold_next(ownership, last):
            time.sleep(BETWEEN_BATCHES_SECONDS)
        while True:
            # As a driver that reports: whoever was followed ends.
            with ownership.transaction():
                pass
            time.sleep(1)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    except psycopg.Error as error:
        sys.exit(str(error))
