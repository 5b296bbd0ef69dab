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
from jobs.runtime.tables_address import tables_problem

SECRETS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}
AZURE = "abfss://metering@weirtables.dfs.core.windows.net/tables"
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


@pytest.mark.parametrize("tables", ["gs://metering/tables", "az://metering/tables", "S3://metering/tables"])
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
    with pytest.raises(CannotRun, match=r"WEIR_TABLES is at .* but tables are in a folder, at s3:// or at abfss://"):
        deployment_of({**given, "WEIR_TABLES": tables})
    with pytest.raises(CannotRun, match=r"WEIR_TABLES is at .* but tables are in a folder, at s3:// or at abfss://"):
        services_of({**given, "WEIR_TABLES": tables}, "test")
    with pytest.raises(ValueError, match=r"WEIR_TABLES is at .* but tables are in a folder, at s3:// or at abfss://"):
        Settings.of({**given, "WEIR_TABLES": tables})
    for usable in ("s3://metering/tables", AZURE, "/var/lib/weir/tables"):
        assert Environment.read({**given, "WEIR_TABLES": usable}).tables == usable
        assert Settings.of({**given, "WEIR_TABLES": usable}).tables == usable


@pytest.mark.parametrize(
    "tables",
    [
        "abfss://metering/tables",
        "abfs://metering@account/tables",
        "abfss://metering@account.blob.core.windows.net/tables",
        "abfss://metering@account.dfs.core.windows.net.example.com/tables",
    ],
)
def test_an_address_of_azure_that_both_clients_do_not_read_alike_is_refused_with_the_form(tables: str) -> None:
    problem = tables_problem(tables)
    assert problem == "must be as abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER"


def test_java_reads_azures_key_from_the_environment_and_no_setting_has_it() -> None:
    settings = spark_settings(AZURE, {"AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0"})
    key = settings["spark.hadoop.fs.azure.account.key.weirtables.dfs.core.windows.net"]
    assert key == "${env.AZURE_STORAGE_ACCOUNT_KEY}"
    assert "c2VjcmV0" not in "".join(settings.values())
    assert not any("abfs.endpoint" in name or "oauth" in name for name in settings)
    assert readable_by_spark(AZURE) == AZURE


def test_java_takes_the_workload_identity_that_azure_gives_a_pod() -> None:
    given = {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_FEDERATED_TOKEN_FILE": "/var/run/token"}
    settings = spark_settings(AZURE, given)
    assert settings["spark.hadoop.fs.azure.account.oauth.provider.type"].endswith(".WorkloadIdentityTokenProvider")
    assert settings["spark.hadoop.fs.azure.account.oauth2.msi.tenant"] == "t"
    assert settings["spark.hadoop.fs.azure.account.oauth2.client.id"] == "c"
    assert settings["spark.hadoop.fs.azure.account.oauth2.token.file"] == "/var/run/token"
    assert not any("account.key" in name for name in settings)


def test_java_gives_up_on_azure_about_as_soon_as_the_other_clients() -> None:
    settings = spark_settings(AZURE, {})
    assert settings["spark.hadoop.fs.azure.http.connection.timeout"] == "5000"
    assert settings["spark.hadoop.fs.azure.http.read.timeout"] == "30000"
    assert settings["spark.hadoop.fs.azure.io.retry.max.retries"] == "3"
