"""Tables in an object store: one address and variables, for delta-rs, which writes, and Spark, which reads.

The variables are `AWS_*` or `AZURE_*`. delta-rs and the probe read them themselves. Java's clients read the credentials
among them (or a workload identity, or a node's role), so no credential is in a setting; only the store's endpoint must
be passed to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from obstore.store import LocalStore, ObjectStore, from_url

from jobs.runtime.delta.azure_store import azure_settings
from jobs.runtime.java_trust import java_trust

SCHEME = "s3://"
WITHOUT_AWS = "us-east-1"
"""A store that is not AWS's takes any region, but the client insists on one."""


@dataclass(frozen=True)
class Patience:
    """How long clients wait for a store. The driver itself waits for an unavailable one, and reports it."""

    connect_seconds: int = 5
    request_seconds: int = 30
    retry_seconds: int = 20
    """In all, for what failed."""


PATIENCE = Patience()


def storage_options(tables: str, patience: Patience = PATIENCE) -> dict[str, str] | None:
    """Limits of delta-rs, beside the variables that it reads itself; None for a folder."""
    if "://" not in tables:
        return None
    return {
        "connect_timeout": f"{patience.connect_seconds}s",
        "timeout": f"{patience.request_seconds}s",
        "retry_timeout": f"{patience.retry_seconds}s",
    }


def store_of(tables: str, environment: Mapping[str, str], patience: Patience = PATIENCE) -> ObjectStore:
    """The store that holds `tables`, with the same limits."""
    if "://" not in tables:
        return LocalStore(tables, mkdir=True)
    allow_http = environment.get("AWS_ALLOW_HTTP" if tables.startswith(SCHEME) else "AZURE_ALLOW_HTTP", "")
    return from_url(
        tables,
        client_options={
            "connect_timeout": timedelta(seconds=patience.connect_seconds),
            "timeout": timedelta(seconds=patience.request_seconds),
            # Options that are given replace those of the environment, this one too.
            "allow_http": allow_http.lower() in ("true", "1"),
        },
        retry_config={"retry_timeout": timedelta(seconds=patience.retry_seconds)},
    )


def readable_by_spark(path: str) -> str:
    """The same place in the words of Hadoop's client."""
    return f"s3a://{path.removeprefix(SCHEME)}" if path.startswith(SCHEME) else path


def spark_settings(tables: str, environment: Mapping[str, str]) -> dict[str, str]:
    """How Spark reaches the store of `tables`; nothing for a folder. Raises Refused for an unusable SSL_CERT_FILE."""
    if "://" not in tables:
        return {}
    if tables.startswith(SCHEME):
        settings = _s3_settings(environment)
    else:
        settings = azure_settings(tables, environment, PATIENCE.connect_seconds, PATIENCE.request_seconds)
    trust = {"spark.driver.extraJavaOptions": option} if (option := java_trust(environment)) else {}
    return {**{f"spark.hadoop.{name}": value for name, value in settings.items()}, **trust}


def _s3_settings(environment: Mapping[str, str]) -> dict[str, str]:
    settings = {
        "fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
        "fs.s3a.input.stream.type": "classic",  # the others need parts of the SDK that are not among our jars
        "fs.s3a.connection.establish.timeout": f"{PATIENCE.connect_seconds}s",
        "fs.s3a.connection.timeout": f"{PATIENCE.request_seconds}s",
    }
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if endpoint := environment.get("AWS_ENDPOINT_URL"):
        settings |= {"fs.s3a.endpoint": endpoint, "fs.s3a.path.style.access": "true"}
        region = region or WITHOUT_AWS
    if region:
        settings["fs.s3a.endpoint.region"] = region
    return settings
