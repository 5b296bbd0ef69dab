"""Spark is told where an object store is, and never a credential."""

from __future__ import annotations

from jobs.runtime.delta.object_store import readable_by_spark, spark_settings

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
