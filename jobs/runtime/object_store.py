"""Tables in an object store: one address and the `AWS_*` variables, for delta-rs, which writes, and Spark, which reads.

delta-rs and the probe read the variables themselves. Java's AWS SDK reads the credentials among them (or a workload
identity, or a node's role), so none of them stands in a setting; where the store is must be told to it.
"""

from __future__ import annotations

from collections.abc import Mapping

SCHEME = "s3://"
WITHOUT_AWS = "us-east-1"
"""A store that is not AWS's takes any region, but the client insists on one."""


def readable_by_spark(path: str) -> str:
    """The same place in the words of Hadoop's client."""
    return f"s3a://{path.removeprefix(SCHEME)}" if path.startswith(SCHEME) else path


def spark_settings(tables: str, environment: Mapping[str, str]) -> dict[str, str]:
    """How Spark reaches the store of `tables`; nothing for a folder."""
    if not tables.startswith(SCHEME):
        return {}
    settings = {
        "fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
        "fs.s3a.input.stream.type": "classic",  # the others need parts of the SDK that are not among our jars
    }
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if endpoint := environment.get("AWS_ENDPOINT_URL"):
        settings |= {"fs.s3a.endpoint": endpoint, "fs.s3a.path.style.access": "true"}
        region = region or WITHOUT_AWS
    if region:
        settings["fs.s3a.endpoint.region"] = region
    return {f"spark.hadoop.{name}": value for name, value in settings.items()}
