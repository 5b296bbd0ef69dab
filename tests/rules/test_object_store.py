"""Spark is told where an object store is, and never a credential."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from api.server import services_of
from dashboard.settings import Settings
from deployment.errors import CannotRun
from deployment.stack import deployment_of
from jobs.runtime.delta.object_store import readable_by_spark, spark_settings
from jobs.runtime.environment import Environment, variable_sentence

SECRETS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}
ELSEWHERE = {**SECRETS, "AWS_ENDPOINT_URL": "http://minio:9000"}


def test_a_folder_needs_no_settings() -> None:
    assert spark_settings("/var/lib/weir/tables", ELSEWHERE) == {}
    assert readable_by_spark("/var/lib/weir/tables/usage") == "/var/lib/weir/tables/usage"


def test_spark_reads_the_same_place_by_its_own_name() -> None:
    assert readable_by_spark("s3://metering/tables/usage") == "s3a://metering/tables/usage"


def test_a_custom_store_is_addressed_by_path_and_has_a_region() -> None:
    settings = spark_settings("s3://metering/tables", ELSEWHERE)
    assert settings["spark.hadoop.fs.s3a.endpoint"] == "http://minio:9000"
    assert settings["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert settings["spark.hadoop.fs.s3a.endpoint.region"] == "us-east-1"


def test_aws_is_found_by_its_region_alone() -> None:
    settings = spark_settings("s3://metering/tables", {"AWS_REGION": "eu-central-1"})
    assert settings["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    assert "spark.hadoop.fs.s3a.endpoint" not in settings


def test_no_credential_becomes_a_setting() -> None:
    assert not set(SECRETS.values()) & set(spark_settings("s3://metering/tables", ELSEWHERE).values())


@pytest.mark.parametrize("tables", ["gs://metering/tables", "abfs://metering@account/tables", "S3://metering/tables"])
def test_a_store_that_no_client_reaches_is_refused_with_its_variable(tables: str) -> None:
    given = {
        "WEIR_KAFKA_BOOTSTRAP": "kafka:9092",
        "WEIR_POSTGRES_URL": "postgresql://weir@postgres/weir",
        "WEIR_CHECKPOINTS": "/tmp/checkpoints",
        "WEIR_JARS": "/jars",
    }
    with pytest.raises(ValidationError) as refused:
        Environment.read({**given, "WEIR_TABLES": tables})
    [problem] = refused.value.errors()
    assert variable_sentence(problem).startswith(f"WEIR_TABLES is at {tables.partition('://')[0]}://, but tables are")
    with pytest.raises(CannotRun, match=r"WEIR_TABLES is at .* but tables are in a folder or at s3://"):
        deployment_of({**given, "WEIR_TABLES": tables})
    with pytest.raises(CannotRun, match=r"WEIR_TABLES is at .* but tables are in a folder or at s3://"):
        services_of({**given, "WEIR_TABLES": tables}, "test")
    with pytest.raises(ValueError, match=r"WEIR_TABLES is at .* but tables are in a folder or at s3://"):
        Settings.of({**given, "WEIR_TABLES": tables})
    for usable in ("s3://metering/tables", "/var/lib/weir/tables"):
        assert Environment.read({**given, "WEIR_TABLES": usable}).tables == usable
        assert Settings.of({**given, "WEIR_TABLES": usable}).tables == usable
