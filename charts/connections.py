"""Values for connections (brokers, database, storage), and for the servers that quickstart runs instead."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from charts.part import Bytes, HttpUrl, Key, Name, Part, Resources
from jobs.runtime.postgres.address import NAME, RESERVED


class Kafka(Part):
    """`kafka`."""

    bootstrap: Annotated[str, Field(pattern=r"^([^\s,:]+:[0-9]{1,5}(,[^\s,:]+:[0-9]{1,5})*)?$")]
    security_protocol: Literal["", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    existing_secret: Name
    username_key: Key
    password_key: Key
    ca_secret: Name
    ca_key: Key
    client_secret: Name
    client_key: Key
    create_topics: bool


class Postgres(Part):
    """`postgres`."""

    existing_secret: Name
    url_key: Key
    dashboard_url_key: Key
    dashboard_password_key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]{0,253}$")]
    schema_: Annotated[
        str,
        Field(alias="schema", pattern=rf"^{NAME.pattern}$", json_schema_extra={"not": {"enum": list(RESERVED)}}),
    ]
    ssl_mode: Literal["", "disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
    ca_secret: Name
    ca_key: Key


class Claim(Part):
    """`storage.claim`."""

    existing: Name
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"]
    size: Bytes
    storage_class: Name
    keep: bool


class ObjectStore(Part):
    """`storage.s3`."""

    url: Annotated[str, Field(pattern=r"^(s3://[a-z0-9][-a-z0-9.]+(/[^\s]*)?)?$")]
    endpoint: HttpUrl
    region: Annotated[str, Field(pattern=r"^[-a-z0-9]*$")]
    existing_secret: Name


class AzureStore(Part):
    """`storage.abfs`."""

    url: Annotated[
        str,
        Field(pattern=r"^(abfss://[a-z0-9][-a-z0-9]+@[a-z0-9]{3,24}\.dfs\.core\.windows\.net(/[^\s]*)?)?$"),
    ]
    existing_secret: Name


class Storage(Part):
    """`storage`."""

    kind: Literal["claim", "s3", "abfs"]
    claim: Claim
    s3: ObjectStore
    abfs: AzureStore
    scratch_size: Bytes


class ServerImage(Part):
    """`quickstart.image`."""

    repository: Annotated[str, Field(pattern=r"^([^\s:@]+(:[0-9]+/[^\s:@]+)?)?$")]
    tag: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]{0,128}$")]
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]


class Quickstart(Part):
    """`quickstart`."""

    enabled: bool
    image: ServerImage
    password: Annotated[str, Field(pattern=r"^([A-Za-z0-9]{16,128})?$")]
    existing_secret: Name
    kafka_size: Bytes
    postgres_size: Bytes
    storage_class: Name
    keep: bool
    kafka_resources: Resources
    postgres_resources: Resources
