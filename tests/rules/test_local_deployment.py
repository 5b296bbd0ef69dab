"""A `weir` command reaches what the environment names; half an address is refused, none means this machine's stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployment.errors import CannotRun
from deployment.stack import Deployment, StackNotRunning, deployment_of, running_deployment
from jobs.runtime.postgres.address import in_schema

POD = {
    "WEIR_KAFKA_BOOTSTRAP": "kafka:9092",
    "WEIR_POSTGRES_URL": "postgresql://weir:secret@db/weir?sslmode=require",
    "WEIR_TABLES": "s3://metering/tables",
}


def test_a_pod_reaches_what_its_environment_names() -> None:
    assert deployment_of(POD) == Deployment(
        kafka_bootstrap="kafka:9092", postgres_url=in_schema(POD["WEIR_POSTGRES_URL"]), tables="s3://metering/tables"
    )


def test_the_password_is_not_in_what_python_prints() -> None:
    assert "secret" not in repr(deployment_of(POD))


def test_an_outside_kafka_alone_is_still_a_stack_of_this_machine() -> None:
    assert deployment_of({"WEIR_KAFKA_BOOTSTRAP": "kafka:9092", "WEIR_POSTGRES_URL": "x"}) is None


def test_an_incomplete_environment_is_refused_with_the_missing_variables() -> None:
    with pytest.raises(CannotRun, match="WEIR_TABLES is set, but not WEIR_KAFKA_BOOTSTRAP and WEIR_POSTGRES_URL"):
        deployment_of({"WEIR_TABLES": "/tables"})


def test_without_an_environment_the_data_folder_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIR_TABLES", raising=False)
    with pytest.raises(StackNotRunning):
        running_deployment(tmp_path)
