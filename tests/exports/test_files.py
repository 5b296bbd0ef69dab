"""Files of exports appear whole: in a folder, and in an S3 store (moto)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import boto3
import obstore
import pytest

from jobs.exports.files import CannotExport, destination_of, keep_only, new_file, put_document
from jobs.runtime.delta.object_store import store_of
from tests.streaming.test_object_store import store as store  # noqa: PLC0414  # a fixture

KILLED = """
import os, signal
from jobs.exports.files import destination_of, new_file
with new_file(destination_of(".", {}), "month/usage.parquet") as path:
    path.write_bytes(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)
"""


REPEATS = 500_000
"""More bytes than a store takes in one part."""


def read(folder: Path) -> list[bytes]:
    """What a reader of the folder finds: no hidden files."""
    return [path.read_bytes() for path in folder.glob("[!.]*/*")]


def test_a_command_that_is_killed_leaves_the_file_of_the_run_before(tmp_path: Path) -> None:
    with new_file(destination_of(str(tmp_path), {}), "month/usage.parquet") as path:
        path.write_bytes(b"before")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert read(tmp_path) == [b"before"]
    with new_file(destination_of(str(tmp_path), {}), "month/usage.parquet") as path:
        path.write_bytes(b"after")
    assert read(tmp_path) == [b"after"]


def test_a_block_that_fails_replaces_nothing(tmp_path: Path) -> None:
    to = destination_of(str(tmp_path), {})
    put_document(to, "a/b.json", {"rows": 1})

    def write() -> None:
        with new_file(to, "a/b.json") as path:
            path.write_text("half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b.json"]
    assert '"rows": 1' in (tmp_path / "a/b.json").read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotExport, match="cannot be written"):
        put_document(destination_of(str(tmp_path / "file"), {}), "a.json", {})


def test_a_store_has_one_object_a_file_and_no_earlier_ones(store: str) -> None:
    to = destination_of("s3://metering/finance", os.environ)
    for name in ("month/usage.parquet", "month/usage.csv", "other/usage.parquet", "month/usage.parquet"):
        with new_file(to, name) as path:
            path.write_bytes(name.encode() * REPEATS)
    keep_only(to, "month", {"month/usage.parquet"})
    put_document(to, "metadata/month.json", {"rows": 7})
    listed = boto3.client("s3").list_objects_v2(Bucket="metering")["Contents"]
    assert {found["Key"]: found["Size"] for found in listed} == {
        "finance/month/usage.parquet": REPEATS * 19,
        "finance/other/usage.parquet": REPEATS * 19,
        "finance/metadata/month.json": 16,
    }
    found = obstore.get(store_of("s3://metering/finance", os.environ), "month/usage.parquet").bytes()
    assert bytes(found) == b"month/usage.parquet" * REPEATS
    with pytest.raises(CannotExport, match="AWS_ACCESS_KEY_ID"):
        put_document(destination_of("s3://nobody/x", os.environ), "a.json", {})
