"""`python -m bench.effective_prices URL`: what effective prices cost to read from the view and the table, and to keep.

10,000 accounts of which each has 200 prices (50 models, 4 meters), on 20 plans and then all on one. The database is one
that nobody needs: it gets these rows.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Annotated

import psycopg
import typer
from psycopg.rows import dict_row

from bench.folded import cpu_seconds
from jobs.ingestion.effective_prices import NOTES_OF_A_FOLD, fold_effective_prices
from jobs.queries.contracts import ContractQuery, contract_rows, contract_source
from jobs.queries.pages import Page

ACCOUNTS, PLANS, MODELS, METERS = 10_000, 20, 50, 4
PAGE = Page(1_001)
MIDDLE = ("account-05000", "", "", "", "")
QUESTIONS = {
    "one account": ContractQuery(accounts=("account-05000",)),
    "50 accounts": ContractQuery(accounts=tuple(f"account-{number:05}" for number in range(50))),
    "one plan, the first 1,000": ContractQuery(plan="plan-07", page=PAGE),
    "the first 1,000": ContractQuery(page=PAGE),
    "1,000 from the middle": ContractQuery(page=Page(1_001, MIDDLE)),
}
CATALOG = f"""
INSERT INTO meters (meter) SELECT 'meter-' || m FROM generate_series(1, {METERS}) AS m ON CONFLICT DO NOTHING;
INSERT INTO catalog.plans SELECT 'plan-' || lpad(p::text, 2, '0'), 'Plan' FROM generate_series(0, {PLANS} - 1) AS p;
INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, unit_price)
SELECT plan, 'model-' || m, 'meter-' || n, 'EUR', '2026-01-01Z', 0.0000015
FROM catalog.plans, generate_series(1, {MODELS}) AS m, generate_series(1, {METERS}) AS n;
INSERT INTO catalog.accounts (account, name, plan, currency, effective_from)
SELECT 'account-' || lpad(a::text, 5, '0'), 'Account', 'plan-' || lpad((a % {PLANS})::text, 2, '0'), 'EUR', '2026-01-01Z'
FROM generate_series(0, {ACCOUNTS} - 1) AS a;
ANALYZE
"""
ALL = "SELECT count(*), max(unit_price) FROM {}"
CHANGE = "UPDATE catalog.prices SET unit_price = unit_price * 2 WHERE (plan, model, meter) = ('plan-07', 'model-1', 'meter-1')"
MOVE = "UPDATE catalog.accounts SET plan = 'plan-07', effective_from = '2026-02-01Z' WHERE plan <> 'plan-07'"
ANNOUNCE = """
INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, unit_price)
VALUES ('plan-07', 'model-2', 'meter-1', 'EUR', now() + interval '1 hour', 1)
"""


def execute(url: str, statements: str) -> None:
    """Run statements, each committed."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements.split(";"):
            connection.execute(statement.encode())


def costs(
    url: str, work: Callable[[psycopg.Connection[dict[str, object]]], object], repeats: int
) -> tuple[float, float]:
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


def reads(url: str, tell: Callable[[str], object]) -> None:
    """Each question, from whichever of the two is right."""
    for name, query in QUESTIONS.items():
        is_few = query.page is None
        cpu, elapsed = costs(url, lambda rows, query=query: list(contract_rows(rows, query)), 100 if is_few else 5)  # type: ignore[misc]
        tell(f"  {name:26} {cpu:8.1f} CPU-ms {elapsed:8.1f} ms")


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


def main(url: Annotated[str, typer.Argument(help="A migrated database, written to.")]) -> None:
    """Print what reading and keeping effective prices costs the database."""
    execute(url, CATALOG)
    for relation in ("catalog.effective_prices", "catalog.effective_prices_now"):
        with psycopg.connect(url, row_factory=dict_row) as connection:
            assert not contract_source(connection).is_stored or relation.endswith("now")
        typer.echo(f"{relation}:")
        reads(url, typer.echo)
        cpu, elapsed = costs(url, lambda rows, relation=relation: rows.execute(ALL.format(relation).encode()), 3)  # type: ignore[misc]
        typer.echo(f"  {'all, counted':26} {cpu:8.1f} CPU-ms {elapsed:8.1f} ms")
        if not relation.endswith("now"):
            folded(url, "everybody", typer.echo)
            execute(url, "VACUUM ANALYZE")
    execute(url, CHANGE)
    folded(url, "one price of a plan of 500 accounts", typer.echo)
    cpu, elapsed = costs(url, lambda rows: contract_source(rows), 1_000)
    typer.echo(f"whether the table is right: {cpu:.2f} CPU-ms {elapsed:.2f} ms")
    execute(url, MOVE)
    folded(url, "9,500 accounts moved to one plan", typer.echo)
    execute(url, f"VACUUM ANALYZE; {CHANGE}")
    folded(url, "one price of a plan of 10,000 accounts", typer.echo)
    execute(url, f"VACUUM ANALYZE; {ANNOUNCE}")
    folded(url, "one announced price of a plan of 10,000 accounts", typer.echo)


if __name__ == "__main__":
    typer.run(main)
