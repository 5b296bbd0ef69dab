"""An S3 store with a certificate of a private authority: each client trusts SSL_CERT_FILE, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from jobs.runtime.errors import Refused
from jobs.runtime.java_trust import java_trust
from laptop.ports import LOOPBACK, free_port
from tests.streaming.certificates import authority_and_server
from tests.waiting import wait_until

OBSTORE = """
import os, obstore
from jobs.runtime.delta.object_store import Patience, store_of
store = store_of("s3://metering/files", os.environ, Patience(2, 5, 3))
obstore.put(store, "a", b"1")
print(bytes(obstore.get(store, "a").bytes()))
"""
DELTA = """
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from jobs.runtime.delta.object_store import Patience, storage_options
options = storage_options("s3://metering/table", Patience(2, 5, 3))
write_deltalake("s3://metering/table", pa.table({"a": [1]}), mode="overwrite", storage_options=options)
print(DeltaTable("s3://metering/table", storage_options=options).to_pyarrow_dataset().to_table().num_rows)
"""
SPARK = """
import os
from laptop.class_archive import submit_arguments
os.environ.update(submit_arguments())
from jobs.runtime.delta.object_store import spark_settings
from jobs.runtime.spark import spark_session
from laptop.jars import connector_jars
once = {"spark.hadoop.fs.s3a.attempts.maximum": "1", "spark.hadoop.fs.s3a.retry.limit": "1"}
spark = spark_session("authority", connector_jars(), conf={**spark_settings("s3://metering", os.environ), **once})
print(spark.read.format("delta").load("s3a://metering/table").count())
"""


@dataclass(frozen=True)
class Store:
    """A store, whose authority is the right one, and another authority of the same name."""

    environment: dict[str, str]
    right: Path
    wrong: Path

    def run(self, program: str, authority: Path | None) -> subprocess.CompletedProcess[str]:
        """A program with the store's address that trusts this authority; None: those of the system."""
        trust = {} if authority is None else {"SSL_CERT_FILE": str(authority)}
        environment = {**os.environ, **self.environment, **trust}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    right, server = authority_and_server(tmp_path_factory.mktemp("right"), LOOPBACK)
    wrong, _ = authority_and_server(tmp_path_factory.mktemp("wrong"), LOOPBACK)
    port = free_port()
    address = f"https://{LOOPBACK}:{port}"
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    command = [sys.executable, "-m", "tests.streaming.store_server", str(port), "--tls", str(server)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = boto3.client(
        "s3",
        endpoint_url=address,
        verify=str(right),
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(retries={"max_attempts": 1}),
    )

    def has_bucket() -> bool:
        try:
            client.create_bucket(Bucket="metering")
        except BotoCoreError:
            return False
        return True

    try:
        wait_until(has_bucket, "the store answers")
        yield Store({"AWS_ENDPOINT_URL": address, "AWS_REGION": "us-east-1", **keys}, right, wrong)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("program", "says"), [(OBSTORE, "b'1'"), (DELTA, "1")], ids=["obstore", "delta-rs"])
def test_a_store_of_a_private_authority_is_reached_by_its_certificate_alone(
    store: Store, program: str, says: str
) -> None:
    trusting = store.run(program, store.right)
    assert trusting.stdout.strip() == says, trusting.stderr[-2_000:]
    for authority in (store.wrong, None):
        refused = store.run(program, authority)
        assert refused.returncode != 0
        assert "certificate" in refused.stderr.lower()


@pytest.mark.long
def test_spark_reads_a_store_of_a_private_authority_by_its_certificate_alone(store: Store) -> None:
    assert store.run(DELTA, store.right).returncode == 0
    trusting = store.run(SPARK, store.right)
    assert trusting.stdout.strip() == "1", trusting.stderr[-2_000:]
    refused = store.run(SPARK, store.wrong)
    assert refused.returncode != 0
    assert "certpath" in refused.stderr


def test_java_gets_a_file_of_the_same_authorities_and_nothing_without_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert java_trust({}) == ""
    authority, _ = authority_and_server(tmp_path, LOOPBACK)
    options = java_trust({"SSL_CERT_FILE": str(authority)})
    assert options == java_trust({"SSL_CERT_FILE": str(authority)})
    file = Path(options.split()[0].removeprefix("-Djavax.net.ssl.trustStore="))
    assert file.stat().st_size > 100
    assert file.stat().st_mode & 0o077 == 0
    assert len(list(tmp_path.glob("*.p12*"))) == 1


@pytest.mark.parametrize("content", [None, b"", b"not a certificate"])
def test_a_file_without_certificates_is_refused_with_its_variable(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Refused, match="SSL_CERT_FILE must name a file of certificates"):
        java_trust({"SSL_CERT_FILE": str(file)})
