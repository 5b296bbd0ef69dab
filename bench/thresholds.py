"""`python -m bench.thresholds URL`: the database's CPU time of thresholds, beside the fold that they are decided with.

Batches of accounts under limits of one account each and of everybody, and edits of accounts with a short and a long
past. The database is one that nobody needs: it gets these rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Annotated, Any

import psycopg
import pyarrow as pa
import typer

from bench.folded import NOON, batch, cpu_seconds
from bench.history_rows import METERS
from jobs.billing.config import BillingConfig
from jobs.billing.fold import fold
from jobs.billing.staged import STAGED
from jobs.billing.thresholds import decide_thresholds, note_members
from jobs.runtime.effective_rules import EffectiveRules
from jobs.runtime.job import Fold
from jobs.runtime.postgres.sink import stage

REPEATS = {500: 20, 2_000: 8, 10_000: 3}
"""How often a batch of so many accounts is folded: the server counts its time in steps of 10 ms."""
CONFIG = BillingConfig(publish=())
AROUND = Fold(NOON, NOON, 10**9, is_whole=True, rules=(EffectiveRules(1, CONFIG.deciding),))

ACCOUNTS = """
INSERT INTO catalog.plans VALUES ('gold', 'Gold'), ('iron', 'Iron') ON CONFLICT DO NOTHING;
INSERT INTO catalog.accounts (account, name, plan, currency, timezone)
SELECT 'account-' || i, 'Account', 'gold', 'EUR', (ARRAY['UTC', 'Europe/Berlin', 'America/New_York'])[i % 3 + 1]
FROM generate_series(0, {accounts} - 1) AS i;
"""
DAYS = """
INSERT INTO usage_days (account, day, model, meter, currency, price_version, quantity, unit_price, usage_rows,
    first_window, last_window_end)
SELECT 'account-' || i, '{until}'::date - d, 'model-' || i % 20, meter, 'EUR', number, 1000, 0.000001500000, 10,
       '{until}'::date - d, '{until}'::date - d
FROM generate_series(0, {accounts} - 1) AS i, generate_series(1, {days}) AS d,
     unnest(ARRAY['requests', 'input_tokens', 'output_tokens']) WITH ORDINALITY AS meters (meter, number);
ANALYZE;
"""
HOURS = """
INSERT INTO usage_hours (account, hour, model, meter, currency, price_version, quantity, unit_price, late_quantity,
    unmetered_rows, corrected)
SELECT 'account-' || i, '{until}'::timestamptz - h * interval '1 hour', 'model-' || i % 20, meter, 'EUR', number, 1000,
       0.000001500000, 0, 0, false
FROM generate_series(1, {hours}) AS h, generate_series(0, {accounts} - 1) AS i,
     unnest(ARRAY['requests', 'input_tokens', 'output_tokens']) WITH ORDINALITY AS meters (meter, number);
ANALYZE;
"""
OF_EACH = "INSERT INTO catalog.limits (account, meter, period, effective_from, quantity)"
OF_LIMITS = {
    "none": "",
    "1,000, of an account each": f"{OF_EACH} SELECT 'account-' || i, 'requests', 'P1M', '2025-01-01', 100000000"
    " FROM generate_series(0, 999) AS i",
    "10,000, of an account each": f"{OF_EACH} SELECT 'account-' || i, 'requests', 'P1M', '2025-01-01', 100000000"
    " FROM generate_series(0, 9999) AS i",
    "3 of a meter by the month, of everybody": f"{OF_EACH} SELECT '', meter, 'P1M', '2025-01-01', 100000000"
    " FROM unnest(ARRAY['requests', 'input_tokens', 'output_tokens']) AS meter",
    "6 of a meter with 20 steps, of everybody": "INSERT INTO catalog.limits"
    " (account, meter, period, effective_from, quantity, steps)"
    " SELECT '', meter, period, '2025-01-01', 100000000, ARRAY(SELECT s * 1000000::numeric FROM"
    " generate_series(1, 20) AS s) FROM unnest(ARRAY['requests', 'input_tokens', 'output_tokens']) AS meter,"
    " unnest(ARRAY['P1D', 'P1M']) AS period",
    "1,000 that roll, of an account each": f"{OF_EACH} SELECT 'account-' || i, 'requests', 'PT24H', '2025-01-01',"
    " 100000000 FROM generate_series(0, 999) AS i",
    "3 that roll, of everybody": f"{OF_EACH} SELECT '', meter, 'PT24H', '2025-01-01', 100000000"
    " FROM unnest(ARRAY['requests', 'input_tokens', 'output_tokens']) AS meter",
    "of money, of everybody": "INSERT INTO catalog.limits (account, currency, period, effective_from, amount)"
    " VALUES ('', 'EUR', 'P1M', '2025-01-01', 1000000)",
}
OF_A_VALUE = "INSERT INTO catalog.limits (account, dimension, dimension_value, meter, period, effective_from, quantity)"
OF_DIMENSIONS = {
    "none": "",
    "1,000 by the month, of an account each": OF_LIMITS["1,000, of an account each"],
    "1,000 of a team, of an account each": f"{OF_A_VALUE} SELECT 'account-' || i, 'team', 'team-' || i % 100,"
    " 'requests', 'P1M', '2025-01-01', 100000000 FROM generate_series(0, 999) AS i",
    "1,000 teams, of everybody": f"{OF_A_VALUE} SELECT '', 'team', 'team-' || i, 'requests', 'P1M', '2025-01-01',"
    " 100000000 FROM generate_series(0, 999) AS i",
}
TEAMS = """
UPDATE usage_days SET dimensions = jsonb_build_object('team', 'team-' || substr(account, 9)::int % 100, 'user', account)
"""


def of_accounts(accounts: int, *, has_teams: bool = False) -> pa.Table:
    """A row of STAGED for each account and meter, with two dimensions or with none."""
    table = batch(len(METERS) * accounts, NOON)
    names = pa.array([f"account-{number // len(METERS)}" for number in range(len(table))])
    table = table.set_column(STAGED.names.index("account"), STAGED.field("account"), names)
    if has_teams:
        numbers = (number // len(METERS) for number in range(len(table)))
        values = pa.array([f'{{"team":"team-{number % 100}","user":"account-{number}"}}' for number in numbers])
        table = table.set_column(STAGED.names.index("dimensions"), STAGED.field("dimensions"), values)
    return table


def measured(
    url: str, repeats: int, table: pa.Table, before: str = "", around: Fold = AROUND
) -> tuple[float, float, int]:
    """CPU-milliseconds of a fold of `table`, and of deciding with it; and how many thresholds changed at first."""
    spent, changed = [0.0, 0.0], 0
    with psycopg.connect(url) as connection:
        for turn in range(repeats + 1):
            if before and turn:
                connection.execute(before.encode())
                connection.commit()
            with connection.cursor() as cursor:
                stage(cursor, STAGED, table)
                at = cpu_seconds(connection.info.backend_pid)
                has_limits = note_members(cursor)
                fold(cursor, CONFIG, around)
                folded = cpu_seconds(connection.info.backend_pid)
                decided = decide_thresholds(cursor, around) if has_limits else 0
                after = cpu_seconds(connection.info.backend_pid)
            connection.commit()
            if turn:
                spent = [spent[0] + folded - at, spent[1] + after - folded]
            else:
                changed = decided
    return spent[0] * 1_000 / repeats, spent[1] * 1_000 / repeats, changed


def edited(url: str, edit: str) -> float:
    """CPU-milliseconds of an edit of the catalog, committed."""
    with psycopg.connect(url) as connection:
        at = cpu_seconds(connection.info.backend_pid)
        connection.execute(edit.encode())
        connection.commit()
        return 1_000 * (cpu_seconds(connection.info.backend_pid) - at)


def batches(url: str, tell: Callable[[str], Any]) -> None:
    """Batches of some and of many accounts, by limits."""
    execute(url, ACCOUNTS.format(accounts=10_000) + DAYS.format(accounts=10_000, days=10, until=NOON.date()))
    for name, limits in OF_LIMITS.items():
        execute(url, f"DELETE FROM catalog.limits; DELETE FROM threshold_changes; {limits}")
        for accounts, repeats in REPEATS.items():
            folded, decided, changed = measured(url, repeats, of_accounts(accounts))
            execute(url, "VACUUM ANALYZE")
            tell(f"{name:42} {accounts:6} accounts: fold {folded:7.1f}, thresholds {decided:7.1f} CPU-ms ({changed})")
    execute(url, "DELETE FROM catalog.limits; DELETE FROM threshold_changes")


def dimensions(url: str, tell: Callable[[str], Any]) -> None:
    """Batches with teams by limits of teams, whose sums the fold keeps; and the first fold after they are declared."""
    execute(url, TEAMS)
    for name, limits in OF_DIMENSIONS.items():
        execute(url, f"DELETE FROM catalog.limits; DELETE FROM threshold_changes; {limits}")
        declared, _, _ = measured(url, 1, STAGED.empty_table(), "DELETE FROM limited_dimensions")
        tell(f"{name:42} summed from all days: {declared:7.1f} CPU-ms")
        for accounts, repeats in REPEATS.items():
            folded, decided, _ = measured(url, repeats, of_accounts(accounts, has_teams=True))
            execute(url, "VACUUM ANALYZE")
            tell(f"{name:42} {accounts:6} accounts: fold {folded:7.1f}, thresholds {decided:7.1f} CPU-ms")
    execute(url, "DELETE FROM catalog.limits; DELETE FROM threshold_changes")


def hours(url: str, tell: Callable[[str], Any]) -> None:
    """What it costs when F enters another hour, where 10,000 accounts have usage in each of 48 hours."""
    execute(url, HOURS.format(accounts=10_000, hours=48, until=NOON.isoformat()))
    around = replace(AROUND, frontier=NOON + timedelta(hours=1))
    for name in ("1,000 that roll, of an account each", "3 that roll, of everybody"):
        execute(url, f"DELETE FROM catalog.limits; DELETE FROM threshold_changes; {OF_LIMITS[name]}")
        measured(url, 1, STAGED.empty_table())
        folded, decided, _ = measured(url, 5, STAGED.empty_table(), around=around)
        tell(f"{name:42} F in another hour: fold {folded:7.1f}, thresholds {decided:7.1f} CPU-ms")
    execute(url, "DELETE FROM catalog.limits; DELETE FROM threshold_changes; DELETE FROM usage_hours")


def edits(url: str, days: int, tell: Callable[[str], Any]) -> None:
    """Edits of 1,000 accounts that have `days` days, with limits of everybody by the day and month."""
    execute(
        url, "DELETE FROM catalog.limits; DELETE FROM catalog.accounts; TRUNCATE usage_days; TRUNCATE usage_windows"
    )
    execute(url, "DELETE FROM threshold_changes; DELETE FROM thresholds_due")
    execute(url, ACCOUNTS.format(accounts=1_000) + DAYS.format(accounts=1_000, days=days, until=NOON.date()))
    nothing = STAGED.empty_table()
    recent, long_ago = NOON.date() - timedelta(days=2), date(2025, 1, 1)
    rename = "UPDATE catalog.accounts SET name = name || '.'"
    tell(f"{days:4} days: edit of 1,000 names, no limits: {edited(url, rename):7.1f} CPU-ms")
    execute(url, OF_LIMITS["6 of a meter with 20 steps, of everybody"])
    _, first, changed = measured(
        url, 1, nothing, "DELETE FROM threshold_changes; INSERT INTO thresholds_due DEFAULT VALUES"
    )
    tell(f"{days:4} days: everything decided: {first:7.1f} CPU-ms ({changed})")
    tell(f"{days:4} days: edit of 1,000 names, with limits: {edited(url, rename):7.1f} CPU-ms")
    _, after, _ = measured(url, 1, nothing)
    tell(f"{days:4} days: decided after it: {after:7.1f} CPU-ms")
    for since in (recent, long_ago):
        move = (
            f"UPDATE catalog.accounts SET plan = CASE plan WHEN 'gold' THEN 'iron' ELSE 'gold' END,"
            f" effective_from = '{since}'"
        )
        tell(f"{days:4} days: 1,000 plans moved from {since}: {edited(url, move):7.1f} CPU-ms")
        _, after, changed = measured(url, 2, nothing, move)
        tell(f"{days:4} days: decided after it: {after:7.1f} CPU-ms ({changed})")


def execute(url: str, statements: str) -> None:
    """Run statements, each committed."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in filter(None, map(str.strip, statements.split(";"))):
            connection.execute(statement.encode())


def main(url: Annotated[str, typer.Argument(help="A migrated database, written to.")]) -> None:
    """Print CPU-milliseconds of folds, and of deciding thresholds with them."""
    batches(url, typer.echo)
    dimensions(url, typer.echo)
    hours(url, typer.echo)
    for days in (10, 100):
        edits(url, days, typer.echo)


if __name__ == "__main__":
    typer.run(main)
