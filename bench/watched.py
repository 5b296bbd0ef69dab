"""All that watches the stream at once: analytics with two views, three patterns and 100 watches, and 1,000 thresholds.

It costs what analytics uses, and what billing uses more with thresholds than without, the database's part included.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.rows import dict_row

from bench.events import ACCOUNTS, MODELS, catalog
from bench.parts import Parts, Setting, prepare, running_parts
from bench.work import TWO_VIEWS, Marks, Measured, Plan, Tell, measure_ingestion, measure_reader
from catalog.file import parse_catalog
from catalog.store import store
from jobs.analytics.watches.store import add_watch
from jobs.stack import StackConfig, load_stack_config
from metering.vocabulary import Job

PATTERNS = ("retry_storm", "abandoned_in_a_row", "price_probing")
"""Of those that are shipped."""
WATCHES = 100
STEPS = ("1000", "10000", "100000", "1000000")
"""Below each limit: with it five thresholds for each account and meter."""
METERS = ("requests", "input_tokens", "output_tokens", "cached_tokens")
THRESHOLDS = ACCOUNTS * len(METERS) * (len(STEPS) + 1)
ERRORS = 0.03
_LIMITS = """
INSERT INTO catalog.limits (account, meter, period, effective_from, quantity, steps)
SELECT account, meter, 'P1M', '2026-01-01', 100000000, %s::numeric[]
FROM catalog.accounts CROSS JOIN unnest(%s::text[]) AS meter
"""
_FOUND = """
SELECT (SELECT count(*) FROM analytics_panes) AS panes, (SELECT count(*) FROM pattern_matches) AS matches,
       (SELECT coalesce(sum(hits), 0)::bigint FROM watch_hours) AS hits,
       (SELECT count(*) FROM threshold_changes) AS threshold_changes
"""


@dataclass(frozen=True)
class WatchedMeasured:
    """What each application used, and how many rows of which kind there are in its database afterwards."""

    analytics: Measured
    billing: Measured
    billing_with_thresholds: Measured
    found: Mapping[str, int]

    @property
    def thresholds_cpu_seconds_per_million(self) -> float:
        """What thresholds add to billing: of two runs, so it may be less than nothing."""
        return _whole(self.billing_with_thresholds) - _whole(self.billing)

    @property
    def cpu_seconds_per_million(self) -> float:
        """Of all of it, per million events sent."""
        return _whole(self.analytics) + self.thresholds_cpu_seconds_per_million


def _whole(measured: Measured) -> float:
    return measured.cpu_seconds_per_million + measured.database_cpu_seconds_per_million


def watched_config() -> StackConfig:
    """Two views, three of the shipped patterns, and watches."""
    shipped = load_stack_config(Path("examples/patterns.yaml")).jobs.analytics.model_dump(mode="json")["patterns"]
    of = {"views": TWO_VIEWS, "patterns": {name: shipped[name] for name in PATTERNS}, "watches": True}
    return StackConfig.model_validate({"jobs": {"analytics": of}})


def conditions(seed: int = 1) -> list[str]:
    """Those of WATCHES watches, of five shapes. Most are rare, as an alarm is."""
    chance = random.Random(seed)
    return [_condition(chance, number) for number in range(WATCHES)]


def _condition(chance: random.Random, number: int) -> str:
    model, account = f"model-{chance.randrange(MODELS):02d}", f"acct-{chance.randrange(ACCOUNTS):02d}"
    match number % 5:
        case 0:
            return f'model = "{model}" and output_tokens > {chance.randint(700, 740)}'
        case 1:
            return f'account = "{account}" and status = "error" and latency_ms > {chance.randint(8_000, 9_000)}'
        case 2:
            return f'account = "{account}" and account.tags.team = "t{number}"'
        case 3:
            return f'model in ("{model}", "m-x") and not (cached or region = "eu-1") and input_tokens >= {number}'
        case _:
            return f"latency_ms > {chance.randint(9_250, 9_290)} and output_tokens > {chance.randint(700, 740)}"


def measure_watched(folder: Path, plan: Plan, tell: Tell) -> WatchedMeasured:
    """Record the traffic once, and measure the three applications on it, each with a database of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with running_parts(folder, Setting(watched_config(), errors=ERRORS)) as parts:
        _, journal = measure_ingestion(folder, parts, plan, _telling(tell, "ingestion"))
        _, usage = measure_reader(Job.JOINS, folder, parts, plan, marks=journal, tell=_telling(tell, "joins"))
        return measure_recorded(folder, parts, plan, usage, tell)


def measure_recorded(folder: Path, parts: Parts, plan: Plan, usage: Marks, tell: Tell) -> WatchedMeasured:
    """Measure them on usage that was recorded under `folder`."""

    def measured(job: Job, case: str, make: Callable[[str], None]) -> tuple[Measured, Mapping[str, int]]:
        own = replace(parts, postgres_url=_database(parts, case))
        make(own.postgres_url)
        found, _ = measure_reader(job, folder, own, plan, marks=usage, tell=_telling(tell, case), case=case)
        tell(f"{case}: {_whole(found):.1f} CPU-s/M with the database's {found.database_cpu_seconds_per_million:.1f}")
        with psycopg.connect(own.postgres_url, row_factory=dict_row) as connection:
            return found, connection.execute(_FOUND).fetchone() or {}

    billing, _ = measured(Job.BILLING, "billing", lambda _: None)
    with_thresholds, of_billing = measured(Job.BILLING, "billing_with_thresholds", _add_limits)
    analytics, of_analytics = measured(Job.ANALYTICS, "analytics", _add_watches)
    found = {name: of_analytics[name] + of_billing[name] for name in of_analytics}
    return WatchedMeasured(analytics, billing, with_thresholds, found)


def _telling(tell: Tell, case: str) -> Tell:
    return lambda text: tell(f"{case}: {text}")


def _database(parts: Parts, name: str) -> str:
    """The address of another database of the same server, with the schema and the catalog."""
    with psycopg.connect(parts.postgres_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    url = urlsplit(parts.postgres_url)._replace(path=f"/{name}").geturl()
    prepare(url, parts.setting)
    store(url, parse_catalog(json.dumps(catalog())))
    return url


def _add_limits(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(_LIMITS, [[*STEPS], [*METERS]])


def _add_watches(url: str) -> None:
    connection: psycopg.Connection[dict[str, Any]]
    with psycopg.connect(url, row_factory=dict_row) as connection:
        for number, condition in enumerate(conditions()):
            add_watch(connection, f"watch_{number:03d}", condition, "bench")
