"""joins' two sizes where names are aliases, meters count contents once and hold, and each restart has other rules."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB
from jobs.joins.sink import UsageSink
from jobs.runtime.delta.pieces import pieces_of_lsns
from jobs.runtime.effective_rules import parse_history
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import CatalogTopic, Table
from metering.price_models import ALIAS_CURRENCY, ALIAS_METER, PricedModel
from tests.clocks import HandClock
from tests.streaming.journals import Journal, at, change, environment
from tests.streaming.test_joins_large_batches import (
    DECLARED,
    NOW,
    RICH,
    Here,
    account,
    in_many_ranges,
    price,
    stored,
    transactions,
    universe,
    waits,
)

ONCE = {"unit": "answer", "count": "outcomes", "once_per": {"column": "content_hash", "within": "PT1H"}}
HELD = {"unit": "token", "sum": "reasoning_tokens", "late_policy": "hold", "hold": {"seconds": 3600}}
SOME = {"unit": "request", "count": "outcomes", "where": {"region": ["eu", "us"]}}
RULES: tuple[dict[str, Any], ...] = (
    {"meters": {"answers": ONCE, "thoughts": HELD}},
    {"meters": {"answers": ONCE, "thoughts": HELD, "regional": SOME}, "completion_timeout_seconds": 400},
    {"meters": {"thoughts": HELD}, "completion_timeout_seconds": 30, "completion_timeouts": {"slower": 600}},
    {"meters": {"answers": ONCE}, "best_report_bills": False},
)
"""What a driver may be started with after another."""
PRICED = ("m", "slow", "slower")


def config_of(rules: dict[str, Any]) -> JoinsConfig:
    meters = JoinsConfig.model_validate({"meters": rules["meters"]}).meters
    return RICH.model_copy(update={**rules, "meters": {**RICH.meters, **meters}})


def started(spark: Any, database: str, journal: Journal, driver_rows: int | None, rules: dict[str, Any]) -> UsageSink:
    config = config_of(rules).model_copy(update={"driver_rows": driver_rows})
    where, owned = environment(database, Path(journal.tables)), Ownership.take(JOB.name, database, {})
    return UsageSink(JOB, Context(config, where, spark, owned, HandClock(NOW), Denials()))


def alias(received_s: float, chance: random.Random) -> dict[str, Any]:
    """A name has the prices of a model from now, from earlier or from later on."""
    name, model = chance.sample(PRICED, 2)
    effective = at(received_s + chance.choice([-500, 0, 80])).isoformat()
    said = {"meter": ALIAS_METER, "currency": ALIAS_CURRENCY, "unit_price": "0", "effective_from": effective}
    return change(CatalogTopic.PRICES, received_s, plan="p", model=PricedModel.alias(name, model).text, **said)


def rejected(received_s: float, chance: random.Random) -> dict[str, Any]:
    """What a person decides about held usage."""
    said = {"account": "a", "request_id": "r1", "decision": "reject", "reason": "no", "decided_by": "bob"}
    at_lsn = {"usage_lsn": chance.randint(1, 5), "meter": "thoughts"}
    return change(CatalogTopic.DECISIONS, received_s, **said, **at_lsn)


def commits(seed: int) -> list[list[dict[str, Any]]]:
    """The universe of the other module, with aliases, decisions about what is held, and contents that come again."""
    chance, found = random.Random(seed), []
    for number, rows in enumerate(universe(seed)):
        second = (rows[0]["received_at"] - at(0)).total_seconds()
        events = [{**row, **content(chance)} if row.get("request_id") is not None else row for row in rows]
        more = [alias(second, chance) for _ in range(chance.randint(0, 2))]
        more += [rejected(second, chance)] if chance.random() < 0.3 else []
        begun = [account(second, "a"), price(second, "m", "thoughts", "2"), price(second, "m", "answers", "3")]
        found.append([*events, *(begun if number == 0 else []), *more])
    return found


def content(chance: random.Random) -> dict[str, Any]:
    hashed = {"content_hash": chance.choice(["1", "2", None]), "region": chance.choice(["eu", "us", "ap", None])}
    return {**hashed, "reasoning_tokens": chance.choice([None, 1, 5])}


def compared(spark: Any, database: str, folder: Path, seed: int) -> pl.DataFrame:
    """A universe through drivers with each `driver_rows`, which are started again with other rules: what they write."""
    chance = random.Random(seed)
    sizes = (None, 1, 9)
    journals = [Journal(folder / name, declared=DECLARED) for name in ("driver", "tasks", "both")]
    rules, sinks = RULES[0], list[UsageSink]()
    for rows in commits(seed):
        for journal in journals:
            journal.commit(rows)
        if sinks and chance.random() < 0.6:
            continue
        if not sinks or chance.random() < 0.5:
            rules = chance.choice(RULES)
            sinks = [started(spark, database, j, size, rules) for j, size in zip(journals, sizes, strict=True)]
            assert [waits(driven) for driven in sinks] == [waits(sinks[0])] * 3, "after a start"
        end = chance.choice([journals[0].next_lsn, chance.randint(1, journals[0].next_lsn)])
        follow(sinks, journals, end)
    follow(sinks, journals, journals[0].next_lsn)
    expected = stored(journals[0])
    for journal in journals[1:]:
        assert stored(journal).equals(expected)
        assert transactions(journal) == transactions(journals[0])
    assert len(expected) > 10
    return pl.DataFrame(expected)


def follow(sinks: list[UsageSink], journals: list[Journal], end: int) -> None:
    """One batch of each."""
    for driven, journal in zip(sinks, journals, strict=True):
        if driven.position() < end:
            table = DeltaTable(f"{journal.tables}/{Table.JOURNAL}")
            found = pieces_of_lsns(table, JOB.columns(driven._config), driven.position(), end)
            is_large = driven.driver_rows is not None and found.rows > driven.driver_rows
            driven.process(found if is_large else found.read())
    assert [waits(driven) for driven in sinks] == [waits(sinks[0])] * 3


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(100, 130))
def test_tasks_write_the_drivers_usage_to_the_byte_with_aliases_holds_and_rules_that_change_at_a_restart(
    database: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_many_ranges(monkeypatch)
    compared(Here(), database, tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(130, 133))
def test_workers_of_spark_do_the_same_under_rules_that_change(
    spark: SparkSession, database: str, tmp_path: Path, seed: int
) -> None:
    compared(spark, database, tmp_path, seed)


def test_these_universes_have_aliases_that_price_and_meters_and_rules_that_change(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_many_ranges(monkeypatch)
    found = [compared(Here(), database, tmp_path / str(seed), seed) for seed in range(100, 103)]
    rows = pl.concat(found)
    entries = rows.explode("meters").unnest("meters")
    priced = entries.filter((pl.col("meter") == "input_tokens") & pl.col("price_version").is_not_null())
    assert set(priced["model"].drop_nulls()) & {"slow", "slower"}, "which have no price but by an alias or a prefix"
    assert {"answers", "thoughts", "regional"} <= set(entries["meter"].drop_nulls())
    assert "decided" in set(rows["outcome"])
    said = [parse_history(text) for text in rows["rules"].drop_nulls() if "in_force" in text]
    assert max(map(len, said)) > 2, "rules that decided"
