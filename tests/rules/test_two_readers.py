"""Differential: the validator reads records in blocks, and one by one where that fails; both give the same rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.reading import MAX_BLOCK_BYTES, MIN_RECORDS
from tests.corpus import BAD_DOCUMENTS, GOOD_DOCUMENTS
from tests.corpus.contracts import GPU
from tests.corpus.documents import completion, encoded, request, request_with
from tests.corpus.drafts import Draft, tree_of
from tests.corpus.mutate import mutant
from tests.corpus.mutations import OF_TREES
from tests.corpus.mutations_of_bytes import OF_BYTES
from tests.pipelines.ingestion import records_of

RECORDS = 10_000
CONFIG = IngestionConfig(contracts=(GPU,))
LITELLM = {"model": "gpt", "prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12, "cost": 1.5e-05}
V2 = {"request_id": "r", "status": "completed", "usage": {"input": 1, "output": 2, "cached": None, "reasoning": 4}}
NUMBERS: tuple[str, ...] = (
    "0.000001",
    "0.0000001",
    "12345678901.123456",
    "99999999999.999999",
    "100000000000",
    "1e3",
    "1E-6",
    "0e99",
)
NUMBERS += ('"1.5"', "-0.5", "-0", "0.10000000000000000000000", "1e400", "NaN", "-Infinity", "86400.000001", "86400")


def declared(chance: random.Random, number: int) -> bytes:
    """An event of a contract that the corpus does not know, with some mutations."""
    event = chance.choice(
        [
            request(type="litellm_tokens", data=LITELLM, id=f"c{number}"),
            request(type="ai.inference.completion.v2", data=V2),
            completion(gpu_seconds=1.5, images=2),
            completion(gpu_seconds=0.25),
        ]
    )
    draft = Draft(tree_of(event), b"k")
    for mutations in (OF_TREES, OF_BYTES):
        for name in chance.choices(list(mutations), k=chance.choice([0, 0, 1])):
            mutations[name](random.Random(number), draft)
        if mutations is OF_TREES:
            draft.write()
    value = draft.value or b""
    return value.replace(b'"gpu_seconds":1.5', b'"gpu_seconds":' + chance.choice(NUMBERS).encode())


def values() -> list[bytes | None]:
    """Mutations of the corpus' events and of others, and the corpus itself."""
    chance = random.Random(14)
    mutants = [mutant(14, number) for number in range(RECORDS)]
    events = [each.draft.value for each in mutants if each.topic is None]
    found: list[bytes | None] = [*events, *(declared(chance, number) for number in range(RECORDS - len(events)))]
    found += [document.value for document in (*BAD_DOCUMENTS, *GOOD_DOCUMENTS)]
    chance.shuffle(found)
    return found


def blocks(all_of_them: Sequence[bytes | None]) -> Iterator[list[bytes | None]]:
    """Of many sizes: most are refused at first, some only in parts."""
    chance, start = random.Random(15), 0
    while start < len(all_of_them):
        end = start + chance.choice([1, 2, MIN_RECORDS, 40, 300, 2_000])
        yield list(all_of_them[start:end])
        start = end


def test_both_readers_give_the_same_rows_whatever_the_records_are() -> None:
    validator, reasons = CONFIG.validator(), Counter[str | None]()
    for block in blocks(values()):
        fast, strict = validator.validate(records_of(block)), validator.validate_strictly(records_of(block))
        for name in fast.schema.names:
            if not fast[name].equals(strict[name]):
                pairs = zip(block, fast[name].to_pylist(), strict[name].to_pylist(), strict=True)
                raise AssertionError(f"{name}: {next(pair for pair in pairs if pair[1] != pair[2])}")
        reasons.update(fast["reason"].to_pylist())
    # It says something only when records of many fates were read.
    assert reasons[None] > RECORDS // 5
    assert len(reasons) >= 14, reasons


@pytest.mark.parametrize("count", [1, MIN_RECORDS - 1, MIN_RECORDS, MIN_RECORDS + 1, 700])
def test_one_bad_record_changes_nothing_of_its_neighbours(count: int) -> None:
    validator, good = CONFIG.validator(), [encoded(request(id=f"e{number}")) for number in range(count)]
    alone = validator.validate(records_of(good)).drop_columns(["offset"])
    for bad in (b"", b"{", b"[]", encoded(request())[:-1], encoded(completion(input_tokens="x")), good[0] + good[0]):
        for place in {0, count // 2, count}:
            mixed = validator.validate(records_of([*good[:place], bad, *good[place:]])).drop_columns(["offset"])
            kept = pl.DataFrame(mixed).with_row_index().filter(pl.col("index") != place).drop("index")
            assert kept.equals(pl.DataFrame(alone))


@pytest.mark.long
@pytest.mark.parametrize("config", [IngestionConfig(), CONFIG], ids=["shipped", "with_a_decimal"])
def test_each_document_alone_is_read_alike(config: IngestionConfig) -> None:
    """In a block of its own, which nothing else has refused before."""
    validator = config.validator()
    for document in (*BAD_DOCUMENTS, *GOOD_DOCUMENTS):
        alone = records_of([document.value])
        assert validator.validate(alone).equals(validator.validate_strictly(alone)), document.name


def test_one_document_split_over_two_records_is_two_dead_letters() -> None:
    whole = encoded(request())
    for cut in (1, 20, len(whole) - 1, whole.index(b'"data"')):
        rows = CONFIG.validator().validate(records_of([whole[:cut], whole[cut:], whole]))
        assert rows["reason"].to_pylist() == ["malformed", "malformed", None]


def test_decimals_are_kept_exactly_and_texts_are_no_decimals() -> None:
    texts = [
        "0.000001",
        "12345.678901",
        "86400",
        "1e3",
        "1.50000000000",
        "0",
        "-0",
        '"1.5"',
        "0.0000001",
        "86400.000001",
    ]
    events = [encoded(completion(gpu_seconds="@")).replace(b'"@"', text.encode()) for text in texts]
    rows = CONFIG.validator().validate(records_of(events)).to_pylist()
    assert [row["gpu_seconds"] for row in rows[:7]] == [Decimal(text) for text in texts[:7]]
    assert [row["reason"] for row in rows] == [None] * 7 + ["invalid_data"] * 3
    assert "/data/gpu_seconds: type is number" in rows[7]["violation"]
    assert rows[9]["violation"] == "ai.inference.completion.v1 /data/gpu_seconds: at most 86400; it is 86400.000001"


def test_a_decimal_is_no_text_however_its_name_is_written() -> None:
    """JSON may write any character of a key as an escape, and Python does where it is not ASCII."""
    schema: dict[str, Any] = {"type": "number", "x-weir-column": "size"}
    for name, written in [("größe", r"gr\u00f6\u00dfe"), ("a/b", r"a\/b"), ('a"b', r"a\"b"), ("size", r"siz\u0065")]:
        own = {**GPU, "properties": {"data": {"properties": {name: schema}}}}
        validator = IngestionConfig(contracts=(own,)).validator()
        event = encoded(completion(at=1)).replace(b'"at":1', f'"{written}":"1.5"'.encode())
        for rows in (validator.validate(records_of([event])), validator.validate_strictly(records_of([event]))):
            assert rows["reason"].to_pylist() == ["invalid_data"], name


def test_blocks_have_a_limit_of_bytes_and_a_record_may_be_larger() -> None:
    large = encoded(request_with(note="n" * (MAX_BLOCK_BYTES + 1)))
    roomy = IngestionConfig(max_record_bytes=2 * MAX_BLOCK_BYTES).validator()
    rows = roomy.validate(records_of([encoded(request()), large, encoded(request())]))
    assert rows["reason"].to_pylist() == [None, None, None]


def test_a_value_that_is_too_large_is_not_read() -> None:
    """It is a dead letter whatever it says, and reading it would take many times its size."""
    validator = IngestionConfig(max_record_bytes=2_000).validator()
    values = [encoded(request_with(note="n" * length)) for length in (10, 3_000)]
    for rows in (validator.validate(records_of(values)), validator.validate_strictly(records_of(values))):
        assert rows["id"].to_pylist() == ["event-1", None]
        assert rows["value"].to_pylist() == values


def test_gateways_that_write_numbers_in_different_ways_are_read_alike() -> None:
    validator = CONFIG.validator()
    ways: list[dict[str, Any]] = [{"sequence": 1}, {"sequence": "2"}, {"sequence": 3, "sourceepoch": 4}]
    ways += [{"sequence": "5", "sourceepoch": "6"}, {}]
    events = [encoded(request(id=f"e{number}", **ways[number % 5])) for number in range(500)]
    events[77] = encoded(request(sequence=1.5))
    for _ in range(3):
        records = records_of(events)
        assert validator.validate(records).equals(validator.validate_strictly(records))
    rows = validator.validate(records_of(events[:5])).select(["sequence", "source_epoch"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, None), (2, None), (3, "4"), (5, "6"), (None, None)]


def test_a_repeated_key_among_very_many_is_found_quickly() -> None:
    keys = ",".join(f'"k{number}":1' for number in range(50_000))
    value = encoded(request_with(note="@")).replace(b'"@"', f'{{{keys},"k49999":2}}'.encode())
    rows = CONFIG.validator().validate(records_of([value])).to_pylist()
    assert (rows[0]["reason"], rows[0]["violation"]) == ("malformed", "JSON (RFC 8259): the key k49999 occurs twice")


@pytest.mark.parametrize("number", ["1e9999999999999999999", "1e-9999999999999999999", "0e99999999999999999999"])
def test_an_exponent_beyond_all_bounds_is_no_quantity(number: str) -> None:
    value = encoded(completion(gpu_seconds="@")).replace(b'"@"', number.encode())
    for rows in (
        CONFIG.validator().validate(records_of([value])),
        CONFIG.validator().validate_strictly(records_of([value])),
    ):
        assert rows["reason"].to_pylist() == ["invalid_data"]


def test_no_records_are_no_rows() -> None:
    validator = CONFIG.validator()
    assert (
        validator.validate(records_of([])).schema
        == validator.validate_strictly(records_of([])).schema
        == validator.schema
    )
    assert validator.validate(records_of([])).num_rows == 0


def test_a_type_named_as_nothing_has_no_contract() -> None:
    rows = CONFIG.validator().validate(
        records_of([encoded(request(type=name)) for name in ("None", "contract", "null")])
    )
    assert rows["family"].to_pylist() == [None] * 3
    assert rows["reason"].to_pylist() == [None] * 3


def test_an_event_of_both_families_is_completed_unless_it_has_another_status() -> None:
    own = {
        "$id": "com.example.call",
        "x-weir-family": "both",
        "properties": {
            "data": {
                "properties": {
                    "id": {"type": "string", "x-weir-column": "request_id"},
                    "model": {"type": "string", "x-weir-column": "model"},
                    "ended": {"enum": ["error", "completed"], "x-weir-column": "status"},
                }
            }
        },
    }
    validator = IngestionConfig(contracts=(own,)).validator()
    call = {"id": "r", "model": "m"}
    events = [
        request(type="litellm_tokens", data=LITELLM),
        request(type="com.example.call", data=call),
        request(type="com.example.call", data={**call, "ended": "error"}),
        completion(),
        request(),
    ]
    for rows in (
        validator.validate(records_of([*map(encoded, events)])),
        validator.validate_strictly(records_of([*map(encoded, events)])),
    ):
        assert rows["status"].to_pylist() == ["completed", "completed", "error", "completed", None]
