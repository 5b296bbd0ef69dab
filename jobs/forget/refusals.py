"""What speaks against an erasure: money depends on the name, Kafka keeps it for ever, or ingestion lacks the key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl
import psycopg

from jobs.runtime.delta.table import open_table
from jobs.runtime.effective_rules import read_history
from jobs.runtime.kafka.topic_settings import FOREVER, TopicSettings, alter
from jobs.streams import Table
from metering.erasure import KEYS_VARIABLE, ErasureKey, is_pseudonym

USER = "user_id"
_KEYS = "SELECT config -> 'erasure_keys' FROM jobs WHERE job = 'ingestion'"


def refusals(tables: str, account: str, user_id: str, reason: str) -> Iterator[str]:
    """A sentence for each thing that must be changed before this person can be forgotten."""
    if not account or not user_id:
        yield "--account and --user are empty: say whom to forget"
    elif is_pseudonym(user_id):
        yield f"{user_id} is the name that an erasure gives: this person is forgotten already"
    if not reason.strip():
        yield "--reason is empty: say why, for anyone who asks later"
    elif user_id and user_id in reason:
        yield "--reason has the name of the person, and is kept: leave it out"
    for table in (Table.JOURNAL, Table.USAGE):
        found = open_table(tables, table)
        history = () if found is None else read_history(found)[0]
        if any(_names(effective.rules, user_id) for effective in history):
            yield (
                f"a rule in the history of {table} has a condition on this {USER}: what is billed depends on the name, "
                "and an audit would compute it otherwise without it"
            )
    prices = open_table(tables, Table.PRICES)
    if prices is not None:
        models = pl.Series(prices.to_pyarrow_table(columns=["model"])["model"].to_pylist(), dtype=pl.String)
        if any(_names(_conditions(model), user_id) for model in models.unique()):
            yield f"a price has a condition on this {USER}: what is billed depends on the name"


def refusals_of_keys(connection: psycopg.Connection[Any], key: ErasureKey) -> Iterator[str]:
    """The same of ingestion, which would stop at an erasure by a key that it does not have."""
    row = connection.execute(_KEYS).fetchone()
    if row is not None and key.id not in (row[0] or ()):
        yield (
            f"ingestion does not have the key {key.id}, the first of {KEYS_VARIABLE} here, and would stop until it "
            f"has it: give it the same {KEYS_VARIABLE} and start it again, then forget the person. It has "
            f"{', '.join(row[0] or ()) or 'none'}"
        )


def refusals_of_topic(topic: TopicSettings) -> Iterator[str]:
    """The same of the topic of events, in which the events stay until Kafka deletes them."""
    if topic.number("retention.ms") in (None, FOREVER):
        yield (
            f"the topic {topic.name} keeps its records for ever, and the person's with them; run: "
            f"{alter(topic.name, 'retention.ms=MILLISECONDS')}"
        )


def _conditions(model: str) -> Any:
    start = model.find('{"')
    if start < 0:
        return None
    try:
        return json.loads(model[start:])
    except ValueError:
        return None


def _names(rules: Any, user_id: str) -> bool:
    """Whether any `user_id` in these rules has this value, or a list with it."""
    if isinstance(rules, Mapping):
        value = rules.get(USER)
        is_named = value == user_id or (isinstance(value, list | tuple) and user_id in value)
        return is_named or any(_names(inner, user_id) for inner in rules.values())
    return isinstance(rules, list | tuple) and any(_names(inner, user_id) for inner in rules)
