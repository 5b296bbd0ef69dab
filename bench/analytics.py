"""Analytics whole: two views, three patterns and 100 watches; and billing with 1,000 thresholds beside billing without.

The aim is of all that it adds: what analytics uses, the database's work for it, and what thresholds add to billing.
Events come at a steady rate, and analytics takes its batches as it is configured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import yaml
from psycopg.rows import dict_row

from bench.events import ACCOUNTS, MODELS, catalog
from bench.parts import Parts, Setting, database_pid, running_parts
from bench.work import TWO_VIEWS, Measured, Plan, Tell, measure_ingestion, measure_reader
from catalog.file import parse_catalog
from catalog.store import store
from jobs.analytics.watches.store import add_watch
from jobs.runtime.postgres.meters_table import declare
from jobs.runtime.postgres.schema import migrate
from jobs.stack import StackConfig
from laptop.database import embedded_database
from metering.vocabulary import Job

EXAMPLES = Path(__file__).parents[1] / "examples" / "patterns.yaml"
PATTERNS = ("retry_storm", "abandoned_in_a_row", "price_probing")
WATCHES = 100
PERIODS = ("P1D", "P1M", "PT2H", "PT6H", "PT24H")
METERS = ("requests", "input_tokens", "output_tokens", "cached_tokens")
LIMITS = """
INSERT INTO catalog.limits (account, meter, period, effective_from, quantity)
SELECT account, meter, period, '2026-01-01', 1000000000
FROM catalog.accounts, unnest(%s::text[]) AS meter, unnest(%s::text[]) AS period
"""
"""As many thresholds as accounts, meters and periods make: three fifths of them roll."""


@dataclass(frozen=True)
class AnalyticsMeasured:
    """Analytics, and billing of the same usage without and with thresholds."""

    analytics: Measured
    billing: Measured
    billing_with_thresholds: Measured

    @property
    def thresholds_cpu_seconds_per_million(self) -> float:
        """What thresholds add to billing and its database, per million events."""
        return _whole(self.billing_with_thresholds) - _whole(self.billing)

    @property
    def cpu_seconds_per_million(self) -> float:
        """What all of it adds, the database's part with it, per million events."""
        return _whole(self.analytics) + self.thresholds_cpu_seconds_per_million


def _whole(job: Measured) -> float:
    return job.cpu_seconds_per_million + job.database_cpu_seconds_per_million


def watching() -> StackConfig:
    """The applications' configuration with two views, three patterns, and watches."""
    analytics = {"views": TWO_VIEWS, "patterns": shipped_patterns(), "watches": True}
    return StackConfig.model_validate({"jobs": {"analytics": analytics}})


def shipped_patterns() -> dict[str, Any]:
    """PATTERNS, as a file of `weir up --config` has them."""
    shipped = yaml.safe_load(EXAMPLES.read_text())["patterns"]
    return {name: shipped[name] for name in PATTERNS}


def conditions() -> Iterator[str]:
    """Of the watches: by model, by account, and one in ten that no row is spared; a few hits each."""
    for number in range(WATCHES):
        model, account = f"model-{number % MODELS:02d}", f"acct-{number % ACCOUNTS:02d}"
        match number % 10:
            case 0 | 1 | 2 | 3 | 4:
                yield f'model = "{model}" and output_tokens > {700 + number % 50} and user_id = "user-{number:05d}"'
            case 5 | 6:
                yield f'account = "{account}" and status in ("error", "cancelled")'
            case 7 | 8:
                yield f'account = "{account}" and latency_ms > {9_000 + number * 3}'
            case _:
                yield f"latency_ms > {9_250 + number % 50} and output_tokens > 740"


def measure_analytics(folder: Path, plan: Plan, tell: Tell) -> AnalyticsMeasured:
    """Meter events once, and measure the three on what ingestion and joins wrote."""

    def teller(name: str) -> Tell:
        return lambda text: tell(f"{name}: {text}")

    with running_parts(folder, Setting(watching())) as parts:
        _, journalled = measure_ingestion(folder, parts, plan, teller("ingestion"))
        _, joined = measure_reader("joins", folder, parts, plan, marks=journalled, tell=teller("joins"))
        add_watches(parts.postgres_url)
        analytics, _ = measure_reader("analytics", folder, parts, plan, marks=joined, tell=teller("analytics"))
        billing, _ = measure_reader("billing", folder, parts, plan, marks=joined, tell=teller("billing"))
        with _limited(folder / "limited", parts) as limited:
            again = folder / "again"
            again.mkdir()
            for writer in (Job.INGESTION.value, Job.JOINS.value):
                (again / writer).symlink_to(folder / writer)
            thresholds, _ = measure_reader("billing", again, limited, plan, marks=joined, tell=teller("thresholds"))
    return AnalyticsMeasured(analytics, billing, thresholds)


def add_watches(url: str) -> None:
    """Store all of them."""
    with psycopg.connect(url, row_factory=dict_row) as database:
        for number, condition in enumerate(conditions()):
            add_watch(database, f"watch-{number:02d}", condition, "bench")


@contextmanager
def _limited(folder: Path, parts: Parts) -> Iterator[Parts]:
    """The same with a database of its own, where each account has limits."""
    with embedded_database(folder / "postgres") as url:
        migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            declare(connection, parts.setting.config.jobs.billing.declared)
        prices: Any = catalog()
        store(url, parse_catalog(json.dumps(prices)))
        with psycopg.connect(url) as connection:
            connection.execute(LIMITS, [list(METERS), list(PERIODS)])
            # As autovacuum does within a minute.
            connection.execute("ANALYZE catalog.limits")
        yield replace(parts, postgres_url=url, database_pid=database_pid(folder / "postgres"))
