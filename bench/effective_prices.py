"""`python -m bench.effective_prices URL`: what effective prices cost to read from the view and the table, and to keep.

Each account has 200 prices (50 models, 4 meters). The database is one that nobody needs: it gets these rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Annotated, Any

import psycopg
import typer
from psycopg.rows import DictRow, dict_row

from bench.folded import cpu_seconds
from jobs.ingestion.effective_prices import IS_DUE, NOTES_OF_A_FOLD, fold_effective_prices
from jobs.queries.contracts import ContractQuery, contract_rows, contract_source
from jobs.queries.pages import Page

MODELS, METERS = 50, 4
PAGE = Page(1_001)
MIDDLE = ("account-00500", "", "", "", "")
QUESTIONS = {
    "one account": ContractQuery(accounts=("account-00500",)),
    "50 accounts": ContractQuery(accounts=tuple(f"account-{number:05}" for number in range(50))),
    "one plan, the first 1,000": ContractQuery(plan="plan-0", page=PAGE),
    "the first 1,000": ContractQuery(page=PAGE),
    "1,000 from the middle": ContractQuery(page=Page(1_001, MIDDLE)),
}
CATALOG = f"""
INSERT INTO meters (meter, unit, is_declared)
SELECT 'meter_' || m, 'tokens', true FROM generate_series(1, {METERS}) AS m
ON CONFLICT DO NOTHING;
INSERT INTO catalog.plans SELECT 'plan-' || p, 'Plan' FROM generate_series(0, {{plans}} - 1) AS p;
INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, unit_price)
SELECT plan, 'model-' || m, 'meter_' || n, 'EUR', '2026-01-01Z', 0.0000015
FROM catalog.plans, generate_series(1, {MODELS}) AS m, generate_series(1, {METERS}) AS n;
INSERT INTO catalog.accounts (account, name, plan, currency, effective_from)
SELECT 'account-' || lpad(a::text, 5, '0'), 'Account', 'plan-' || a % {{plans}}, 'EUR', '2026-01-01Z'
FROM generate_series(0, {{accounts}} - 1) AS a;
ANALYZE
"""
ALL = "SELECT count(*), max(unit_price) FROM {}"
CHANGE = """
UPDATE catalog.prices SET unit_price = unit_price * 2
WHERE (plan, model, meter) = ('plan-0', 'model-1', 'meter_1')
"""
ANNOUNCE = """
INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, unit_price)
VALUES ('plan-0', 'model-2', 'meter_1', 'EUR', now() + interval '1 hour', 1)
"""


def execute(url: str, statements: str) -> None:
    """Run statements, each committed."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements.split(";"):
            connection.execute(statement.encode())


def costs(url: str, work: Callable[[psycopg.Connection[DictRow]], object], repeats: int) -> tuple[float, float]:
    """CPU-milliseconds of the server's session, and milliseconds, of each time."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        work(connection)
        connection.commit()
        at, began = cpu_seconds(connection.info.backend_pid), perf_counter()
        for _ in range(repeats):
            work(connection)
            connection.commit()
        spent = cpu_seconds(connection.info.backend_pid) - at
        return 1_000 * spent / repeats, 1_000 * (perf_counter() - began) / repeats


def compare(url: str, relation: str, tell: Callable[[str], object]) -> None:
    """Each question, and all rows counted, where the readers read `relation`."""
    tell(f"{relation}:")
    for name, query in QUESTIONS.items():
        repeats = 100 if query.page is None else 10
        cpu, elapsed = costs(url, partial(_rows, query=query), repeats)
        tell(f"  {name:26} {cpu:8.1f} CPU-ms {elapsed:8.1f} ms")
    cpu, elapsed = costs(url, lambda rows: rows.execute(ALL.format(relation).encode()), 3)
    tell(f"  {'all, counted':26} {cpu:8.1f} CPU-ms {elapsed:8.1f} ms")


def _rows(database: psycopg.Connection[DictRow], query: ContractQuery) -> list[dict[str, Any]]:
    return list(contract_rows(database, query))


def folded(url: str, name: str, tell: Callable[[str], object]) -> None:
    """Fold all that is due, and say what a fold costs."""
    with psycopg.connect(url) as connection:
        at, began, longest, folds, accounts = cpu_seconds(connection.info.backend_pid), perf_counter(), 0.0, 0, 0
        while True:
            since = perf_counter()
            with connection.transaction(), connection.cursor() as cursor:
                now = cursor.execute("SELECT now()").fetchone()
                assert now is not None
                found = fold_effective_prices(cursor, now[0])
            if not found:
                break
            longest, folds, accounts = max(longest, perf_counter() - since), folds + 1, accounts + found
        spent, elapsed = cpu_seconds(connection.info.backend_pid) - at, perf_counter() - began
    tell(
        f"{name}: {accounts:,} accounts in {folds} folds of {NOTES_OF_A_FOLD}: {spent:.2f} CPU-s, {elapsed:.1f} s, "
        f"the longest {1_000 * longest:.0f} ms"
    )


def main(
    url: Annotated[str, typer.Argument(help="A migrated database, written to.")],
    accounts: Annotated[int, typer.Option(help="How many accounts.")] = 10_000,
    plans: Annotated[int, typer.Option(help="How many plans they are on.")] = 20,
) -> None:
    """Print what reading and keeping effective prices costs the database."""
    execute(url, CATALOG.format(accounts=accounts, plans=plans))
    compare(url, "catalog.effective_prices", typer.echo)
    folded(url, "everybody", typer.echo)
    execute(url, "VACUUM ANALYZE")
    compare(url, "catalog.effective_prices_now", typer.echo)
    of_plan = f"of a plan of {accounts // plans:,} accounts"
    for change, name in ((CHANGE, "one price"), (ANNOUNCE, "one announced price")):
        execute(url, change)
        folded(url, f"{name} {of_plan}", typer.echo)
        execute(url, "VACUUM ANALYZE")
    cpu, elapsed = costs(url, contract_source, 1_000)
    typer.echo(f"whether the table is right: {cpu:.2f} CPU-ms {elapsed:.2f} ms")
    cpu, elapsed = costs(url, lambda rows: rows.execute(IS_DUE), 1_000)
    typer.echo(f"whether anything is due: {cpu:.2f} CPU-ms {elapsed:.2f} ms")


if __name__ == "__main__":
    typer.run(main)
