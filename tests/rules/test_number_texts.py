"""Numbers that gateways write as texts: taken where a contract says so, and read as the numbers that they are.

differential: blocks and single records are read alike, and as the oracle reads them.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import strategies as st

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.reading import Reader
from metering.contracts.schema import contract_of, contracts_of
from metering.contracts.shipped import shipped
from tests.corpus import RECEIVED_AT
from tests.corpus.contracts import completions_with
from tests.corpus.documents import completion, encoded, request
from tests.corpus.drafts import Draft, tree_of
from tests.corpus.mutations import OF_TREES
from tests.corpus.mutations_of_bytes import OF_BYTES
from tests.generated import generated
from tests.pipelines.ingestion import records_of, rows_of
from tests.pipelines.oracle_events import TOKENS, said

EITHER = {"x-weir-number": "text_or_number"}
OWN = completions_with(
    gpu_seconds={"type": "number", "minimum": 0, "x-weir-column": "gpu_seconds", **EITHER},
    score={"type": "number", "format": "double", "x-weir-column": "score", **EITHER},
    **dict.fromkeys(TOKENS, EITHER),
)
CONFIG = IngestionConfig(contracts=(OWN,))
TYPE = OWN["$id"]
USAGE = "ai.inference.usage.v1"
NUMBERS = ("0", "7", "-0", "-1", "10000000000", "10000000001", "9" * 30, "1e3", "12.0", "1E-6", "1e400", "0.0000001")
OTHERS = ("", " 7", "7 ", "+7", "07", ".5", "5.", "0x7", "1_000", "٧", "NaN", "Infinity", "true", "null", "7\n", "1e")


def with_data(**data: Any) -> dict[str, Any]:
    return {**completion(), "data": {**completion()["data"], **data}}


def rows_read(*events: dict[str, Any], config: IngestionConfig = CONFIG) -> list[dict[str, Any]]:
    """The rows of events, which both ways of reading give."""
    values = [encoded(event) for event in events]
    rows = rows_of(values, config)
    assert rows == rows_of(values, config, strictly=True)
    return rows


def test_a_text_that_holds_a_number_is_that_number() -> None:
    (row,) = rows_read(with_data(input_tokens="123456", gpu_seconds="1.50", score="2e-3"))
    assert row["reason"] is None
    assert (row["input_tokens"], row["gpu_seconds"], row["score"]) == (123_456, Decimal("1.5"), 0.002)


def test_a_text_and_a_number_of_one_value_are_the_same_content() -> None:
    written: list[dict[str, Any]] = [{"gpu_seconds": 1.5}, {"gpu_seconds": "1.5"}, {"gpu_seconds": "1.500"}]
    rows = rows_read(*[with_data(input_tokens=tokens, **each) for tokens in (7, "7") for each in written])
    assert len({row["content_digest"] for row in rows}) == 1
    other = rows_read(with_data(input_tokens="8", gpu_seconds="1.5"))
    assert other[0]["content_digest"] != rows[0]["content_digest"]


@pytest.mark.parametrize("name", ["input_tokens", "gpu_seconds", "score"])
def test_a_text_is_taken_just_where_it_would_be_without_its_quotes(name: str) -> None:
    bare = encoded(with_data(**{name: "@"}))
    plain = [bare.replace(b'"@"', number.encode()) for number in NUMBERS]
    quoted = [with_data(**{name: number}) for number in NUMBERS]
    expected = [(row["reason"], row[name], row["content_digest"]) for row in rows_of(plain, CONFIG)]
    assert [(row["reason"], row[name], row["content_digest"]) for row in rows_read(*quoted)] == expected
    assert len({reason for reason, *_ in expected}) == 2


@pytest.mark.parametrize("name", ["input_tokens", "gpu_seconds", "score"])
def test_a_text_that_is_no_number_is_refused_and_quoted(name: str) -> None:
    rows = rows_read(*[with_data(**{name: text}) for text in OTHERS])
    for text, row in zip(OTHERS, rows, strict=True):
        assert row["reason"] == ("invalid_tokens" if name == "input_tokens" else "invalid_data"), text
        assert f"{TYPE} /data/{name}: type is " in row["violation"]
        assert ", or a string of one; it is the string " in row["violation"]
        assert row[name] is None


def test_a_refused_text_is_shown_with_how_it_is_to_be_written() -> None:
    rows = rows_read(with_data(input_tokens="12.0"), with_data(input_tokens="-12"), with_data(input_tokens=12.0))
    place, kind = f"{TYPE} /data/input_tokens:", "type is integer, or a string of one"
    assert [row["violation"] for row in rows] == [
        f'{place} {kind}; it is the string "12.0", to be written as 12',
        f"{place} at least 0; it is -12",
        f"{place} {kind}; it is 12.0, to be written as 12",
    ]


def test_number_texts_are_accepted_only_by_contracts_that_allow_them() -> None:
    event = request(type=USAGE, data={**request()["data"], **completion()["data"], "input_tokens": "812"})
    refused, taken = rows_read(event, with_data(input_tokens="812"))
    assert refused["reason"] == "invalid_tokens"
    assert refused["violation"] == (
        f'{USAGE} /data/input_tokens: type is integer; it is the string "812", to be written as 812'
    )
    assert (taken["reason"], taken["input_tokens"]) == (None, 812)


def test_a_text_that_is_no_number_stays_a_text() -> None:
    """An attribute of CloudEvents that has the name of a number."""
    ordinals = {"id": "first", "sourceepoch": "second"}
    fields = {name: {"type": "integer", "x-weir-column": column, **EITHER} for name, column in ordinals.items()}
    config = IngestionConfig(contracts=(completions_with(**fields),))
    (row,) = rows_read({**with_data(id="-0", sourceepoch="3"), "id": "-0", "sourceepoch": "-0"}, config=config)
    assert (row["id"], row["source_epoch"], row["first"], row["second"]) == ("-0", "-0", 0, 3)


@pytest.mark.parametrize("name", [None, "com.example.unknown", TYPE, USAGE])
def test_an_event_of_any_type_or_none_has_its_row(name: str | None) -> None:
    events = [with_data(input_tokens="1"), {**with_data(input_tokens="2"), "type": name}]
    rows = rows_read(*events, *events)
    assert [row["type"] for row in rows] == [TYPE, name] * 2


def test_a_name_may_be_written_with_escapes_and_the_text_too() -> None:
    value = encoded(with_data(input_tokens="@"))
    odd = [rb'"input_toke\u006es":"12"', rb'"input_tokens" :  "1\u0032"', b'"input_tokens"\n:\t"12"']
    values = [value.replace(b'"input_tokens":"@"', each) for each in odd]
    for strictly in (False, True):
        rows = rows_of(values, CONFIG, strictly=strictly)
        assert [(row["reason"], row["input_tokens"]) for row in rows] == [(None, 12)] * 3


def test_a_block_of_texts_is_read_as_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read one by one they would cost many times as much."""
    alone: list[int] = []
    strictly = Reader.read_strictly

    def counted(reader: Reader, values: Sequence[bytes | None]) -> pl.DataFrame:
        alone.append(len(values))
        return strictly(reader, values)

    monkeypatch.setattr(Reader, "read_strictly", counted)
    events = [{**with_data(input_tokens=str(n), output_tokens=n, gpu_seconds="0.5"), "id": str(n)} for n in range(500)]
    rows = rows_of([encoded(event) for event in events], CONFIG)
    assert [row["input_tokens"] for row in rows] == list(range(500))
    assert alone == []


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """Events of a contract that takes texts for tokens, and of one that does not, with numbers in many spellings."""
    event = draw(
        st.sampled_from([completion(), request(type=USAGE, data={**request()["data"], **completion()["data"]})])
    )
    data = dict(event["data"])
    texts = st.sampled_from([*NUMBERS, *OTHERS]) | st.integers(-3, 10**11).map(str)
    for name in draw(st.lists(st.sampled_from([*TOKENS, "note", "status"]), max_size=3)):
        data[name] = draw(texts | texts.map(lambda text: f"@{text}@") | st.integers(-1, 9) | st.none())
    # What stands between two @ is written without quotes, as far as that is JSON.
    written = json.dumps({**event, "data": data}, indent=draw(st.sampled_from([None, 1])))
    return written.replace('"@', "").replace('@"', "").encode()


def test_differential_numbers_and_texts_get_the_reason_and_the_columns_of_the_oracle() -> None:
    values = generated(events(), 500)
    fast, strict = rows_of(values, CONFIG), rows_of(values, CONFIG, strictly=True)
    assert fast == strict
    fates = Counter[str | None]()
    for value, row in zip(values, fast, strict=True):
        expected = said(value, RECEIVED_AT, of_texts=[TYPE])
        assert row["reason"] == expected.reason, value
        if expected.reason is None:
            assert {name: row[name] for name in TOKENS} == {name: expected.columns[name] for name in TOKENS}, value
        fates[expected.reason] += 1
    assert fates[None] > 50
    assert fates["invalid_tokens"] > 50
    assert fates["malformed"] > 20


@pytest.mark.long
def test_differential_broken_events_with_texts_are_read_alike() -> None:
    """Rewriting a number never makes a document of what was none, nor another one of what was."""
    chance, values = random.Random(31), []
    for number in range(3_000):
        event = with_data(input_tokens=str(number), gpu_seconds="0.25", note={"input_tokens": "1", "of": ["{", ","]})
        draft = Draft(tree_of(event if number % 3 else {**event, "type": USAGE}), b"k")
        for mutations in (OF_TREES, OF_BYTES):
            for name in chance.choices(list(mutations), k=chance.choice([0, 1])):
                mutations[name](random.Random(number), draft)
            if mutations is OF_TREES:
                draft.write()
        values.append(draft.value or b"")
    validator, reasons = CONFIG.validator(), Counter[str | None]()
    for start in range(0, len(values), 20):
        records = records_of(values[start : start + 20])
        fast, strict = validator.validate(records), validator.validate_strictly(records)
        for name in fast.schema.names:
            assert fast[name].to_pylist() == strict[name].to_pylist(), name
        reasons.update(fast["reason"].to_pylist())
    assert reasons[None] > 500
    assert len(reasons) > 8


def test_an_extended_contract_may_allow_number_texts() -> None:
    base, own = contracts_of([], shipped())[TYPE], contract_of(OWN, shipped())
    fields = {field.column: field for field in own.fields}
    for field in base.fields:
        assert fields[field.column].takes_text is (field.column in TOKENS)
        assert fields[field.column].minimum == field.minimum
    whole = shipped()[TYPE]["properties"]["data"]["properties"]["input_tokens"]
    assert contract_of(completions_with(input_tokens={**whole, **EITHER}), shipped()).fields != base.fields
