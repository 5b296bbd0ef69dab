"""The validator's error costs only the record that it fails on; if it fails on all, no record is blamed."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.ingestion import catalog, strict_json, validator
from jobs.ingestion.catalog import change_verdict
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.envelope import attributes
from jobs.ingestion.quarantine import verdicts
from jobs.ingestion.unreadable import validated_in_parts
from jobs.journal.catalog_problems import change_problem
from jobs.streams import CatalogTopic
from metering.vocabulary import Isolation
from tests.corpus.documents import encoded, request
from tests.pipelines.ingestion import records_of

POISON_TIME = "2026-07-01T11:11:11Z"


@given(st.lists(st.booleans(), max_size=70))
def test_items_are_validated_in_order_and_only_failing_ones_are_unreadable(fails: list[bool]) -> None:
    calls = 0

    def validated(items: pl.Series) -> list[Any]:
        nonlocal calls
        calls += 1
        if any(fails[number] for number in items):
            raise ValueError("half a surrogate \ud800")
        return items.to_list()

    def unreadable(items: pl.Series, error: str) -> list[Any]:
        return [f"{items[0]} {error}"]

    parts = validated_in_parts(pl.Series(range(len(fails)), dtype=pl.Int64), validated, unreadable, lambda: None)
    expected = [f"{n} ValueError: half a surrogate \\ud800" if fail else n for n, fail in enumerate(fails)]
    assert [item for part in parts for item in part] == expected
    # Each that fails is looked for among halves of what is left.
    assert calls <= 1 + 2 * sum(fails) * max(1, len(fails)).bit_length()


def values(count: int, *poisoned: int) -> list[bytes]:
    return [
        encoded(request(id=f"e{number}", **({"time": POISON_TIME} if number in poisoned else {})))
        for number in range(count)
    ]


@pytest.fixture
def fails_on_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the rules over columns that nobody knows of yet."""

    def failing(read: pl.DataFrame) -> pl.DataFrame:
        if (read["/time"] == POISON_TIME).any():
            raise pl.exceptions.ComputeError("poison\0")
        return attributes(read)

    monkeypatch.setattr(validator, "attributes", failing)


@pytest.mark.usefixtures("fails_on_poison")
def test_a_record_that_the_rules_fail_on_is_unreadable_and_no_other_differs() -> None:
    found = IngestionConfig().validator().validate(records_of(values(50, 7, 31, 49)))
    rows = found.to_pylist()
    assert [row["offset"] for row in rows] == list(range(50))
    assert {row["offset"]: (row["reason"], row["violation"]) for row in rows if row["reason"]} == dict.fromkeys(
        (7, 31, 49), ("unreadable", "Weir: ComputeError: poison\\u0000")
    )
    assert [row["value"] for row in rows] == values(50, 7, 31, 49)
    assert {row["key"] for row in rows} == {b"k"}
    assert all(row["is_broker_stamp"] and row["stamped_at"] for row in rows)
    kept = pa.Table.from_pylist([row for row in rows if not row["reason"]], found.schema)
    whole = pl.DataFrame(IngestionConfig().validator().validate(records_of(values(50))))
    assert pl.DataFrame(kept).equals(whole.filter(~pl.col("offset").is_in([7, 31, 49])))


@pytest.mark.usefixtures("fails_on_poison")
def test_a_record_that_the_validator_fails_on_has_no_digest_and_the_others_have_theirs() -> None:
    sound = pl.Series([encoded(request(id=f"e{number}")) for number in range(9)], dtype=pl.Binary)
    digests = IngestionConfig().validator().digests(sound)
    mixed = IngestionConfig().validator().digests(pl.Series(values(9, 4), dtype=pl.Binary))
    assert mixed.to_list() == [None if number == 4 else digest for number, digest in enumerate(digests)]


def test_a_record_that_the_strict_reader_fails_on_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    document = strict_json.document

    def failing(value: bytes | None, read: Any) -> Any:
        if value == b"[poison]":
            raise RecursionError("too deep \udfff")
        return document(value, read)

    monkeypatch.setattr(strict_json, "document", failing)
    rows = IngestionConfig().validator().validate(records_of([*values(2), b"[poison]", b"1"])).to_pylist()
    assert [(row["reason"], row["violation"]) for row in rows] == [
        (None, None),
        (None, None),
        ("unreadable", "Weir: RecursionError: too deep \\udfff"),
        ("malformed", "JSON (RFC 8259): the document is no object"),
    ]


@pytest.mark.parametrize("error", [ValueError("a broken validator"), MemoryError()])
def test_a_validator_that_fails_on_every_record_blames_none(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise error

    for part in ("attributes", "envelope_rules", "contents", "identities", "text_of", "mark_texts", "_storable"):
        with monkeypatch.context() as rules:
            rules.setattr(validator, part, broken)
            with pytest.raises(type(error)):
                IngestionConfig().validator().validate(records_of(values(3)))
    monkeypatch.setattr(strict_json, "document", broken)
    with pytest.raises(type(error)):
        IngestionConfig().validator().validate(records_of([*values(3), b"1"]))


PLAN = json.dumps({"op": "c", "after": {"plan": "p"}, "ts_ms": 1}).encode()


def test_a_change_that_the_parser_fails_on_is_unreadable_and_a_broken_parser_blames_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parse = change_problem

    def failing(topic: str, key: bytes | None, value: bytes | None) -> str | None:
        if value == b"poison":
            raise KeyError("\ud800")
        return parse(topic, key, value)

    monkeypatch.setattr(catalog, "change_problem", failing)
    reason, violation = change_verdict(CatalogTopic.PLANS, None, b"poison")
    assert (reason, violation) == ("unreadable", "Weir: KeyError: '\\ud800'")
    assert change_verdict(CatalogTopic.PLANS, None, PLAN) == (None, None)

    def broken(*_: object) -> str | None:
        raise KeyError("all of them")

    monkeypatch.setattr(catalog, "change_problem", broken)
    with pytest.raises(KeyError, match="all of them"):
        change_verdict(CatalogTopic.PLANS, None, PLAN)


ROWS = st.lists(st.tuples(st.sampled_from([None, "malformed", *Isolation]), st.booleans()), max_size=9)


@settings(max_examples=50)
@given(ROWS)
def test_each_record_that_is_too_large_or_unreadable_is_written_down_once_with_its_size(
    rows: list[tuple[str | None, bool]],
) -> None:
    columns: dict[str, Any] = {
        "partition": [0] * len(rows),
        "offset": list(range(len(rows))),
        "key": [b"k"] * len(rows),
        "value": [b"v" * n for n in range(len(rows))],
    }
    schema = {"partition": pl.Int32, "offset": pl.Int64, "key": pl.Binary, "value": pl.Binary}
    said = pl.DataFrame(
        {"reason": [reason for reason, _ in rows], "violation": [f"Weir: {n}" for n in range(len(rows))]},
        schema={"reason": pl.String, "violation": pl.String},
    )
    known = {(0, n): Isolation.TOO_LARGE for n, (_, is_known) in enumerate(rows) if is_known}
    found = list(verdicts(pl.DataFrame(columns, schema), said, known))
    for reason in (Isolation.TOO_LARGE, Isolation.UNREADABLE):
        new = {(0, n): n + 1 for n, (why, is_known) in enumerate(rows) if why == reason and not is_known}
        assert [sizes for sizes, why, _ in found if why is reason] == ([new] if new else [])
