"""`weir contracts`: real files of events and of contracts, validated without a stack."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from cli.lines import numbered
from cli.main import app
from cli.validated_lines import BATCH_EVENTS, COLUMNS
from jobs.ingestion import documents
from jobs.ingestion.documents import records_of, violation_parts
from jobs.ingestion.reading import MAX_BLOCK_BYTES
from metering.contracts.schema import contract_of
from metering.contracts.shipped import shipped
from tests.corpus.contracts import completions_with

EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "type": "ai.inference.completion.v1",
    "source": "s",
    "id": "1",
    "subject": "acme",
    "time": "2001-01-01T00:00:00Z",
    "data": {"request_id": "r-1", "status": "completed", "input_tokens": 3},
}
GPU = completions_with(
    gpu_seconds={"type": "number", "minimum": 0, "x-weir-column": "gpu_seconds"},
    **{"a: /b": {"type": "boolean", "x-weir-column": "odd"}},
)


def weir(*arguments: str, given: bytes = b"") -> Result:
    return CliRunner().invoke(app, ["contracts", *arguments], input=given)


def lines(*events: Any) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def with_data(**more: Any) -> dict[str, Any]:
    return {**EVENT, "data": {**EVENT["data"], **more}}


def validated(*arguments: str, given: bytes = b"") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(weir("check", "-", "--format", "json", *arguments, given=given).stdout)
    return rows


def test_events_that_are_valid_end_the_command_with_0(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(EVENT, EVENT))
    answer = weir("check", str(file))
    assert (answer.exit_code, answer.stderr) == (0, "2 valid, 0 invalid\n")
    assert "ai.inference.completion.v1" in answer.stdout


def test_an_invalid_event_is_named_by_its_line_with_contract_path_and_rule(tmp_path: Path) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    files[0].write_bytes(lines(EVENT))
    files[1].write_bytes(lines(EVENT, with_data(status="done")))
    answer = weir("check", *map(str, files), "--format", "json")
    assert (answer.exit_code, answer.stderr) == (1, "2 valid, 1 invalid\n")
    assert json.loads(answer.stdout)[2] == {
        "file": str(files[1]),
        "line": 2,
        "type": "ai.inference.completion.v1",
        "disposition": "invalid",
        "reason": "invalid_status",
        "contract": "ai.inference.completion.v1",
        "path": "/data/status",
        "rule": 'one of completed, cancelled, error; it is "done"',
        "unread": None,
        "hint": None,
    }


@pytest.mark.parametrize(
    ("line", "reason", "contract", "path", "rule"),
    [
        (b'"', "malformed", "JSON (RFC 8259)", None, "Unterminated string starting, at character 0"),
        (b"\xef\xbb\xbf{}", "malformed", "JSON (RFC 8259)", None, "a byte order mark stands before it"),
        (b'\xef\xbb\xbf{"id":"\\u0000"}', "nul_character", "JSON (RFC 8259)", None, "the character U+0000"),
        (b'{"id": "a\0"}', "malformed", "JSON (RFC 8259)", None, "Invalid control character, at character 9"),
        (b"\xff", "not_utf8", "JSON (RFC 8259)", None, "byte 0: invalid start byte"),
        (b'{"id":"\\u0000"}', "nul_character", "JSON (RFC 8259)", None, "the character U+0000"),
        (b"{}", "invalid_specversion", "CloudEvents 1.0", "/specversion", "required"),
        (
            lines({**EVENT, "id": ""}).strip(),
            "invalid_id",
            "CloudEvents 1.0",
            "/id",
            '1 to 512 bytes without control characters; it is ""',
        ),
        (
            lines(with_data(pad="x" * 2**20)).strip(),
            "too_large",
            "Weir",
            None,
            "at most 1048576 bytes, key and value",
        ),
    ],
)
def test_a_violation_outside_contracts_names_the_rule_of_its_standard(
    line: bytes, reason: str, contract: str, path: str | None, rule: str
) -> None:
    (row,) = validated(given=line + b"\n")
    assert (row["disposition"], row["reason"]) == ("invalid", reason)
    assert (row["contract"], row["path"], row["rule"]) == (contract, path, rule)


def test_a_type_without_a_contract_is_valid_and_marked_as_on_no_bill() -> None:
    unknown = {**EVENT, "type": "gpu.v1", "data": 3}
    answer = weir("check", "-", given=lines(unknown, EVENT))
    assert answer.exit_code == 0
    assert answer.stderr == "2 valid (1 of a type without a contract: kept and counted, on no bill), 0 invalid\n"
    assert validated(given=lines(unknown))[0]["rule"] == "unknown type: kept and counted, on no bill"


def test_the_time_of_an_event_is_not_checked() -> None:
    times = ["1970-01-01T00:00:00Z", "2900-01-01T00:00:00Z"]
    assert {row["disposition"] for row in validated(given=lines(*({**EVENT, "time": time} for time in times)))} == {
        "valid"
    }


def test_a_contract_given_as_an_option_replaces_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text(json.dumps(GPU))
    event = lines(with_data(gpu_seconds=-1), with_data(gpu_seconds="1"), with_data(gpu_seconds=1.5))
    assert [row["disposition"] for row in validated(given=event)] == ["valid"] * 3
    tried = validated("--contract", str(tmp_path / "gpu.json"), given=event)
    assert [(row["disposition"], row["path"]) for row in tried] == [
        ("invalid", "/data/gpu_seconds"),
        ("invalid", "/data/gpu_seconds"),
        ("valid", None),
    ]


def test_each_line_has_its_row_also_beyond_one_batch() -> None:
    many = [EVENT] * BATCH_EVENTS + [{**EVENT, "subject": ""}, EVENT]
    rows = validated(given=lines(*many))
    assert [row["line"] for row in rows] == list(range(1, len(many) + 1))
    assert [row["line"] for row in rows if row["disposition"] == "invalid"] == [BATCH_EVENTS + 1]


def test_large_events_are_validated_a_few_at_a_time_and_an_oversized_line_is_not_retained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[list[int]] = []

    def seen(several: Sequence[bytes], *, topics: Sequence[str]) -> pa.Table:
        held.append([len(document) for document in several])
        return records_of(several, topics=topics)

    monkeypatch.setattr(documents, "records_of", seen)
    large = with_data(pad="x" * (MAX_BLOCK_BYTES // 2))
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(EVENT, large, EVENT, large, with_data(pad="x" * 3 * MAX_BLOCK_BYTES), EVENT)[:-1])
    answer = weir("check", str(file), "--format", "json")
    found = [(row["line"], row["reason"]) for row in json.loads(answer.stdout)]
    assert found == [(1, None), (2, "too_large"), (3, None), (4, "too_large"), (5, "too_large"), (6, None)]
    assert [len(sizes) for sizes in held] == [3, 1, 1, 1]
    assert held[2] == [MAX_BLOCK_BYTES + 1]


@given(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=5), st.integers(1, 12))
def test_a_line_is_cut_where_it_may_end_and_the_next_begins_behind_it(documents: list[bytes], most: int) -> None:
    whole = b"\n".join(documents)
    written = [(number, document) for number, document in enumerate(documents, start=1)]
    assert list(numbered(io.BytesIO(whole))) == [each for each in written if each[1].strip()]
    is_last = len(documents)
    kept = [(n, each) for n, each in written if each.strip() or (len(each) >= most and (each or n < is_last))]
    assert list(numbered(io.BytesIO(whole), most)) == [(number, document[:most]) for number, document in kept]


def test_a_blank_line_is_no_record_and_the_lines_behind_it_keep_their_numbers() -> None:
    rows = validated(given=b"\n" + lines(EVENT) + b" \t\r\n\n" + lines(EVENT) + b"\n")
    assert [(row["line"], row["disposition"]) for row in rows] == [(2, "valid"), (5, "valid")]


def test_csv_has_the_same_columns() -> None:
    answer = weir("check", "-", "--format", "csv", given=lines(EVENT))
    assert next(csv.reader(io.StringIO(answer.stdout))) == list(COLUMNS)


@pytest.mark.parametrize("command", [["check", "-"], ["list"]])
def test_a_document_that_is_no_contract_ends_the_command_with_2(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps({**GPU, "additionalProperties": False}))
    answer = weir(*command, "--contract", str(file))
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr == (
        f"{file}: contract ai.inference.completion.v1: Weir does not check additionalProperties, so it is not "
        "allowed; allowed are $id, $schema, allOf, description, properties, required, title, type, x-weir-family, "
        "x-weir-includes, x-weir-unnest\n"
    )


def test_a_path_is_separated_from_its_rule_whatever_it_contains() -> None:
    contract = contract_of(GPU, shipped())
    violation = "ai.inference.completion.v1 /data/a: ~1b: type is boolean"
    assert violation_parts(violation, contract) == {
        "contract": "ai.inference.completion.v1",
        "path": "/data/a: ~1b",
        "rule": "type is boolean",
    }


def test_the_list_has_each_field_of_each_contract_that_holds(tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text(json.dumps(GPU))
    shipped_rows = json.loads(weir("list", "--format", "json").stdout)
    rows = json.loads(weir("list", "--contract", str(tmp_path / "gpu.json"), "--format", "json").stdout)
    assert {row["type"] for row in rows} == set(shipped())
    assert [row["column"] for row in rows if row not in shipped_rows] == ["odd", "gpu_seconds"]
    assert {
        "type": "ai.inference.completion.v1",
        "family": "completion",
        "path": "/data/status",
        "holds": "string",
        "rule": "one of completed, cancelled, error",
        "required": True,
        "column": "status",
        "reason": "invalid_status",
    } in rows


def test_a_number_that_may_be_a_text_is_listed_as_that_and_checked(tmp_path: Path) -> None:
    own = completions_with(input_tokens={"x-weir-number": "text_or_number"})
    (tmp_path / "own.json").write_text(json.dumps(own))
    option = ("--contract", str(tmp_path / "own.json"))
    rows = json.loads(weir("list", *option, "--format", "json").stdout)
    named = {row["path"]: row["holds"] for row in rows if row["type"] == own["$id"]}
    assert named["/data/input_tokens"] == "integer, or a string of one"
    assert named["/data/output_tokens"] == "integer"
    events = lines(with_data(input_tokens="123456"), with_data(input_tokens="123,456"))
    taken, refused = validated(*option, given=events)
    assert taken["reason"] is None
    assert (refused["reason"], refused["path"]) == ("invalid_tokens", "/data/input_tokens")
    assert '"123,456"' in refused["rule"]


def test_a_contract_without_fields_is_listed_too() -> None:
    (row,) = [row for row in json.loads(weir("list", "--format", "json").stdout) if row["family"] == "heartbeat"]
    assert (row["type"], row["path"]) == ("source.heartbeat.v1", None)
