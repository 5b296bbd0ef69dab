"""Method: what usage says of its account beside a reading of every version one by one, to the microsecond.

The oracle knows no rule of `metering.pricing`: it plays versions back, in the order of their lsn, into what the account
was at each instant when the outcome was decided.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from jobs.ingestion.config import IngestionConfig
from jobs.joins.catalog_versions import account_versions, price_versions
from jobs.joins.config import JoinsConfig
from jobs.joins.memory import Memory, column_of
from jobs.joins.pricing import price
from jobs.joins.resolve import resolve
from jobs.joins.versions_in_use import VersionsInUse
from jobs.stack import load_stack_config
from jobs.streams import ACCOUNTS, PRICES
from metering.tags import tags_text

NAMED = ("api_key_id", "account.plan", "account.tags.team", "account.parent")
OTHER_FOUR = ("account.tags.cost.center", "account.name", "account.timezone", "account.tags.a/b:c@d-e_F")
CONFIG = JoinsConfig.model_validate({"dimensions": NAMED})
SCHEMA = resolve(Memory.empty(CONFIG.carried).rows, None).schema
START = datetime(2026, 1, 1, tzinfo=UTC)
LAST_US = 4
KNOWN = ("acme", "bolt")

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4)
tags = st.dictionaries(st.sampled_from(["team", "cost.center", "a/b:c@d-e_F", "it's", '"']), texts, max_size=4)
said = st.fixed_dictionaries(
    {
        "plan": st.sampled_from(["basic", "pro"]),
        "name": st.none() | texts,
        "parent": st.none() | st.sampled_from(["group", "O'Neill"]),
        "timezone": st.none() | st.just("Europe/Berlin"),
        "tags": tags,
    }
)
changes = st.lists(st.tuples(st.sampled_from(KNOWN), st.integers(0, LAST_US), st.none() | said), max_size=12)
"""(account, microsecond from which it holds, what it says; None: deleted); their lsn is 10, 20, …"""


@dataclass(frozen=True)
class Asked:
    """An outcome: decided by `lsn`, of `at_us` microseconds after START."""

    account: str
    at_us: int
    lsn: int
    api_key_id: str | None


asked = st.builds(
    Asked, st.sampled_from([*KNOWN, "nobody"]), st.integers(-1, LAST_US + 1), st.integers(9, 131), st.none() | texts
)
Change = tuple[str, int, dict[str, Any] | None]


def expected(told: list[Change], one: Asked, named: tuple[str, ...]) -> dict[str, str] | None:
    """By reading all that was told before it was decided."""
    was: dict[int, dict[str, Any] | None] = {}
    for lsn, (account, since, says) in zip(range(10, 10 * len(told) + 1, 10), told, strict=True):
        if account == one.account and lsn < one.lsn:
            # Painted over all that was said of this instant and of later ones; the first over all time.
            was.update(dict.fromkeys(range(since if was else -10, LAST_US + 2), says))
    says = was.get(one.at_us) or {}
    every = {"api_key_id": one.api_key_id, **{f"account.{name}": value for name, value in says.items()}}
    every |= {f"account.tags.{tag}": value for tag, value in says.get("tags", {}).items()}
    return {name: every[name] for name in named if every.get(name) is not None} or None


def versions(told: list[Change], order: Random) -> pa.Table:
    """The table of versions, its rows in any order."""
    rows = []
    for lsn, (account, since, says) in zip(range(10, 10 * len(told) + 1, 10), told, strict=True):
        row = {"lsn": lsn, "account": account, "effective_from": START + timedelta(microseconds=since)}
        rows.append(row | {"deleted": says is None} | (says or {}) | {"tags": tags_text((says or {}).get("tags", {}))})
    order.shuffle(rows)
    return pa.Table.from_pylist(rows, schema=ACCOUNTS)


def outcomes(questions: list[Asked]) -> pl.DataFrame:
    rows = [
        {"account": one.account, "event_time": START + timedelta(microseconds=one.at_us), "outcome": "matched"}
        | {"request_lsn": one.lsn - 1, "completion_lsn": one.lsn, "request_id": str(number)}
        | {"api_key_id": one.api_key_id}
        for number, one in enumerate(questions)
    ]
    return pl.DataFrame([{name: row.get(column_of(name)) for name in SCHEMA} for row in rows], schema=SCHEMA)


def dimensions_of(frame: pl.DataFrame, accounts: Any, named: tuple[str, ...], **seen: Any) -> list[Any]:
    priced = price(frame, CONFIG.declared, accounts, price_versions(PRICES.empty_table()), named=named, **seen)
    return [None if text is None else json.loads(text) for text in priced["dimensions"].to_pylist()]


@settings(max_examples=40)
@given(changes, st.lists(asked, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_oracle_usage_has_the_account_as_of_its_time_known_at_its_decision(
    told: list[Change], questions: list[Asked], order: Random
) -> None:
    """Backdated, announced, deleted, unknown, put there again; whoever looks back, and whatever he knows by then."""
    table, frame, named = versions(told, order), outcomes(questions), (*NAMED, *OTHER_FOUR)
    wanted = [expected(told, one, named) for one in questions]
    ready = partial(account_versions, dimensions=named)
    assert dimensions_of(frame, ready(table), named) == wanted
    assert dimensions_of(frame, ready(table), named, seen_from=10_000) == wanted, "an audit moves none"
    in_use = VersionsInUse(table, ("account",), ready)
    in_parts = [dimensions_of(part, in_use, named) for part in (frame.head(1), frame.slice(1)) if len(part)]
    assert [one for part in in_parts for one in part] == wanted, "whatever else is asked in the same batch"


def test_account_columns_are_not_read_from_events() -> None:
    assert [name for name in CONFIG.carried if name.startswith("text:")] == ["text:api_key_id"]


ALLOWED = "use account.name, account.parent, account.plan, account.timezone, or account.tags.KEY"


@pytest.mark.parametrize(
    "name",
    [
        *("account.currency", "account.account", "account.", "account.Plan", "account.tags", "account.tags."),
        *("account.plan.x", "account.tags.it's", 'account.tags."', "account.tags.a b", "account.tags.a,b"),
        *("account.tags.%s", "account.tags.-a", "account.tags.ü", "account.tags.a\n", "account.tags." + "x" * 65),
    ],
)
def test_an_unknown_account_column_is_refused_with_the_allowed_values(name: str) -> None:
    with pytest.raises(ValidationError, match=ALLOWED) as refused:
        JoinsConfig.model_validate({"dimensions": [name]})
    assert f"{name} is not a column of an account" in str(refused.value)


def test_columns_of_the_account_count_toward_the_limit_and_stand_there_once() -> None:
    with pytest.raises(ValidationError, match="at most 4"):
        JoinsConfig.model_validate({"dimensions": [*NAMED, "account.name"]})
    with pytest.raises(ValidationError, match=r"account\.plan occurs twice"):
        JoinsConfig.model_validate({"dimensions": ["account.plan", "account.plan"]})
    assert IngestionConfig.model_validate({"dimensions": NAMED}).dimensions == NAMED


@pytest.mark.parametrize("name", ["account.currency", "account.tags.a b"])
def test_the_file_of_a_stack_is_refused_before_anything_starts(tmp_path: Path, name: str) -> None:
    file = tmp_path / "stack.yaml"
    file.write_text(json.dumps({"dimensions": ["api_key_id", name]}))
    with pytest.raises(ValueError, match=ALLOWED):
        load_stack_config(file)
    file.write_text(json.dumps({"dimensions": ["api_key_id", "account.tags.team"]}))
    assert load_stack_config(file).jobs.joins.dimensions == ("api_key_id", "account.tags.team")
