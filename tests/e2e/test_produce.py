"""`weir produce` sends the bytes of each line as they are, and says which the broker has and which it refused."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pyarrow.compute as pc
from deltalake import DeltaTable

from deployment.stack import Stack
from jobs.ingestion.documents import subject_of
from tests.e2e.metering import drain, weir

OVERSIZE_BYTES = 300_000


def event(subject: str, number: int, padding: int = 0) -> bytes:
    return json.dumps(
        {
            "specversion": "1.0",
            "type": "test.note.v1",
            "source": f"test/{subject}",
            "id": str(number),
            "subject": subject,
            "time": datetime.now(UTC).isoformat(),
            "data": {"padding": "x" * padding},
        }
    ).encode()


def journalled(stack: Stack, values: list[bytes]) -> list[dict[str, object]]:
    """The journal's rows of these bytes, in the order of record."""
    drain(stack)
    dataset = DeltaTable(f"{stack.tables}/journal").to_pyarrow_dataset()
    columns = ["lsn", "key", "value", "disposition", "partition", "offset"]
    found: list[dict[str, object]] = (
        dataset.to_table(columns=columns, filter=pc.field("value").isin(values)).sort_by("lsn").to_pylist()
    )
    return found


def test_every_line_is_acknowledged_and_journalled_as_it_is(stack: Stack, tmp_path: Path) -> None:
    subject = f"subject-{uuid4().hex}"
    lines = [
        event(subject, 1),
        b'{"subject":"' + subject.encode() + b'" , "cut',
        b"\xff\xfe " + subject.encode(),
        b"  " + event(subject, 2) + b"\r",
        event(subject, 3),
    ]
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"\n".join(lines))
    produced = weir(stack, "produce", str(file), "--format", "json")
    assert produced.returncode == 0, produced.stderr
    assert json.loads(produced.stdout) == {"acknowledged": 5, "refused": []}
    rows = journalled(stack, lines)
    assert sorted(row["value"] for row in rows) == sorted(lines)  # type: ignore[type-var]
    by_value = {row["value"]: row for row in rows}
    assert [by_value[line]["disposition"] for line in lines] == [
        *("accepted", "rejected", "rejected", "accepted", "accepted")
    ]
    assert [by_value[line]["key"] for line in lines] == [
        subject.encode(),
        None,
        None,
        subject.encode(),
        subject.encode(),
    ]
    mine = [by_value[lines[number]] for number in (0, 3, 4)]
    assert len({row["partition"] for row in mine}) == 1
    assert [row["offset"] for row in mine] == sorted(row["offset"] for row in mine)  # type: ignore[type-var]


def test_a_record_too_large_for_the_broker_is_reported_by_line(stack: Stack, tmp_path: Path) -> None:
    subject = f"subject-{uuid4().hex}"
    small = [event(subject, number) for number in range(400)]
    lines = [*small[:100], event(subject, 1_000, OVERSIZE_BYTES), *small[100:], event(subject, 1_001, OVERSIZE_BYTES)]
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"\n".join(lines) + b"\n")
    produced = weir(stack, "produce", str(file), "--format", "json")
    assert produced.returncode == 1
    said = json.loads(produced.stdout)
    assert said["acknowledged"] == 400
    assert [refusal["line"] for refusal in said["refused"]] == [101, 402]
    assert all("MSG_SIZE_TOO_LARGE" in refusal["reason"] for refusal in said["refused"])
    assert [row["value"] for row in journalled(stack, lines)] == small
    shown = weir(stack, "produce", str(file))
    assert "400 acknowledged, 2 refused" in shown.stdout
    assert "line 101 was refused by the broker" in shown.stderr


def test_standard_input_is_read_for_a_dash(stack: Stack) -> None:
    command = [sys.executable, "-m", "cli.main", "produce", "-", "--data-dir", str(stack.data_dir)]
    subject = f"subject-{uuid4().hex}"
    lines = event(subject, 1) + b"\n" + event(subject, 2) + b"\n"
    produced = subprocess.run(command, input=lines, capture_output=True, check=True, timeout=120)
    assert b"2 acknowledged, 0 refused" in produced.stdout


def test_a_missing_file_is_reported_in_a_sentence(stack: Stack, tmp_path: Path) -> None:
    produced = weir(stack, "produce", str(tmp_path / "none.jsonl"))
    assert produced.returncode == 2
    assert produced.stderr.strip().endswith("none.jsonl cannot be read: No such file or directory.")


def test_the_key_is_the_subject_where_one_can_be_read() -> None:
    assert subject_of(b'{"subject":"a\xc3\xa9"}') == "aé".encode()
    for document in (
        b"",
        b"[]",
        b'{"subject":1}',
        b'{"subject":""}',
        b'{"subject":"\\ud800"}',
        b"\xff",
        b"[" * 100_000,
    ):
        assert subject_of(document) is None
