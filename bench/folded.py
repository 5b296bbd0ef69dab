"""`python -m bench.folded URL`: the database's CPU time of a fold by distinct keys, with and without roll-ups.

A batch has one row per key: 2,000 accounts, three meters, as many minutes as it takes. It is folded as new keys, then
again as known ones, and committed each time. The database is one that nobody needs: it gets these rows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import psutil
import psycopg
import pyarrow as pa
import typer

from bench.history_rows import METERS
from jobs.billing.config import BillingConfig
from jobs.billing.fold import fold
from jobs.billing.staged import STAGED
from jobs.runtime.effective_rules import EffectiveRules
from jobs.runtime.job import Fold
from jobs.runtime.postgres.sink import stage

ACCOUNTS = 2_000
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
FOLDS = {20: 100, 200: 30, 1_000: 16, 10_000: 5, 100_000: 2}
"""How often a batch of so many known keys is folded: the server counts its time in steps of 10 ms."""
SWITCH = "ALTER TABLE usage_windows {0} TRIGGER USER; ALTER TABLE usage_days {0} TRIGGER USER"


def cpu_seconds(pid: int) -> float:
    """Of the server's process for a session: what a busy machine hardly changes."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def batch(keys: int, begins: datetime) -> pa.Table:
    """`keys` rows of STAGED with one key each, from the minute `begins` on."""
    same = {"day": begins.date(), "currency": "EUR", "cause": "stream", "sign": 1, "late": False, "metered_rows": 1}
    rows = []
    for number in range(keys):
        place, meter = divmod(number, len(METERS))
        minute, account = divmod(place, ACCOUNTS)
        start = begins + timedelta(minutes=minute)
        row = {"window_start": start, "event_time": start, "received_at": start, "meter": METERS[meter]}
        key = {"account": f"account-{account}", "model": f"model-{account % 20}", "price_version": meter + 1}
        sums = {"quantity": 7 + number % 91, "unmetered_rows": 0, "unsound_rows": 0, "is_correction": False}
        rows.append({**same, **row, **key, **sums, "first_lsn": number + 1})
    prices = pa.array(["0.000001500000"] * keys).cast(STAGED.field("unit_price").type)
    table = pa.Table.from_pylist(rows, schema=STAGED)
    for name in ("unit_price", "lowest_unit_price"):
        table = table.set_column(STAGED.names.index(name), STAGED.field(name), prices)
    return table


def main(
    url: Annotated[str, typer.Argument(help="A migrated database, written to.")],
    keys: Annotated[list[int] | None, typer.Option(help="Keys of a batch, of FOLDS.")] = None,
) -> None:
    """Print milliseconds of a fold: of new keys, and of known ones, which most are."""
    config = BillingConfig(publish=())
    around = Fold(NOON, NOON, 10**9, is_whole=True, rules=(EffectiveRules(1, config.deciding),))
    for day, switched in enumerate(("DISABLE", "ENABLE")):
        with psycopg.connect(url) as connection:
            connection.execute(SWITCH.format(switched).encode())
        for count in keys or FOLDS:
            table = batch(count, NOON + timedelta(days=day))
            with psycopg.connect(url) as connection:
                spent = []
                for _ in range(1 + FOLDS[count]):
                    before = cpu_seconds(connection.info.backend_pid)
                    with connection.cursor() as cursor:
                        stage(cursor, STAGED, table)
                        fold(cursor, config, around)
                    connection.commit()
                    spent.append(1_000 * (cpu_seconds(connection.info.backend_pid) - before))
            known = sum(spent[1:]) / FOLDS[count]
            roll_ups = "with" if switched == "ENABLE" else "without"
            typer.echo(f"{count:7} keys {roll_ups} roll-ups: new {spent[0]:8.1f}, known {known:8.1f} CPU-ms")


if __name__ == "__main__":
    typer.run(main)
