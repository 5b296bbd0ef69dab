"""Connecting to Kafka: one address, protocol and credential, as settings of librdkafka and of Spark's Java client."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

KafkaSettings = dict[str, str | int | float | bool]
"""Settings of librdkafka: addresses and credentials."""

PREFIX = "WEIR_KAFKA_"

LIBRDKAFKA_LIMITS: KafkaSettings = {
    "socket.timeout.ms": 15_000,
    "socket.connection.setup.timeout.ms": 10_000,
    "socket.keepalive.enable": True,
    "reconnect.backoff.max.ms": 2_000,
}
"""A broker that is frozen or cut off is noticed within a quarter of a minute, and its return within seconds."""
SPARK_LIMITS = {
    "kafka.request.timeout.ms": "15000",
    "kafka.default.api.timeout.ms": "20000",
    "kafka.socket.connection.setup.timeout.max.ms": "10000",
    "fetchOffset.numRetries": "1",
    "kafkaConsumer.pollTimeoutMs": "30000",
}
"""The same for Spark's Java client, whose own limits add up to several minutes."""


class SecurityProtocol(StrEnum):
    """Kafka's names for what protects a connection."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def signs_in(self) -> bool:
        """Whether a client proves who it is by a password."""
        return self.value.startswith("SASL_")

    @property
    def is_encrypted(self) -> bool:
        """Whether the broker shows a certificate."""
        return self.value.endswith("SSL")


class SaslMechanism(StrEnum):
    """How the password is proven, with the Java class that does it."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"

    @property
    def login_module(self) -> str:
        """Kafka's Java class."""
        kind = "plain.Plain" if self is SaslMechanism.PLAIN else "scram.Scram"
        return f"org.apache.kafka.common.security.{kind}LoginModule"


class KafkaAccess(BaseModel):
    """Read from `WEIR_KAFKA_*`: the names of the fields in capitals."""

    model_config = ConfigDict(frozen=True)

    bootstrap: str = Field(description="Addresses of brokers: `host:port`, comma-separated.")
    security_protocol: SecurityProtocol = Field(
        default=SecurityProtocol.PLAINTEXT, description=f"One of {', '.join(SecurityProtocol)}."
    )
    sasl_mechanism: SaslMechanism = Field(
        default=SaslMechanism.SCRAM_SHA_512, description=f"With SASL: one of {', '.join(SaslMechanism)}."
    )
    username: str = Field(default="", description="With SASL: the user.")
    password: SecretStr = Field(default=SecretStr(""), description="With SASL: its password.")
    ca_file: Path | None = Field(
        default=None, description="Certificates (PEM) that sign the brokers'; the system's when left out."
    )

    client_file: Path | None = Field(
        default=None,
        description="By which the brokers know this client: its private key (PKCS #8, not encrypted) and its "
        "certificates, in one PEM file.",
    )

    @model_validator(mode="after")
    def _is_complete(self) -> KafkaAccess:
        given = bool(self.username and self.password.get_secret_value())
        if self.security_protocol.signs_in != given:
            needs = "needs" if self.security_protocol.signs_in else "takes no"
            raise ValueError(f"{self.security_protocol} {needs} {PREFIX}USERNAME and {PREFIX}PASSWORD")
        for name, file in (("CA_FILE", self.ca_file), ("CLIENT_FILE", self.client_file)):
            if file is not None and not self.security_protocol.is_encrypted:
                raise ValueError(f"{self.security_protocol} is not encrypted, but {PREFIX}{name} is set")
        return self

    @classmethod
    def read(cls, environment: Mapping[str, str], bootstrap: str | None = None) -> KafkaAccess:
        """The connection from the environment. Credentials go only to the brokers they were given with.

        `bootstrap` is an address from elsewhere. Raises `pydantic.ValidationError`.
        """
        if bootstrap is not None and environment.get(f"{PREFIX}BOOTSTRAP") != bootstrap:
            return cls(bootstrap=bootstrap)
        return cls.model_validate(kafka_fields(environment))

    def librdkafka(self) -> KafkaSettings:
        """Settings of a confluent-kafka client."""
        settings: KafkaSettings = {"bootstrap.servers": self.bootstrap, **LIBRDKAFKA_LIMITS}
        if self.security_protocol is not SecurityProtocol.PLAINTEXT:
            settings["security.protocol"] = self.security_protocol.value
        if self.security_protocol.signs_in:
            settings["sasl.mechanism"] = self.sasl_mechanism.value
            settings["sasl.username"] = self.username
            settings["sasl.password"] = self.password.get_secret_value()
        if self.ca_file is not None:
            settings["ssl.ca.location"] = str(self.ca_file)
        if self.client_file is not None:
            settings |= {"ssl.certificate.location": str(self.client_file), "ssl.key.location": str(self.client_file)}
        return settings

    def spark(self) -> dict[str, str]:
        """Options of Spark's Kafka source."""
        options = {"kafka.bootstrap.servers": self.bootstrap, **SPARK_LIMITS}
        if self.security_protocol is not SecurityProtocol.PLAINTEXT:
            options["kafka.security.protocol"] = self.security_protocol.value
        if self.security_protocol.signs_in:
            options["kafka.sasl.mechanism"] = self.sasl_mechanism.value
            options["kafka.sasl.jaas.config"] = (
                f"{self.sasl_mechanism.login_module} required username={_quoted(self.username)} "
                f"password={_quoted(self.password.get_secret_value())};"
            )
        if self.ca_file is not None:
            options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(self.ca_file)}
        if self.client_file is not None:
            options |= {"kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.location": str(self.client_file)}
        return options


def kafka_fields(environment: Mapping[str, str]) -> dict[str, str]:
    """The fields of `KafkaAccess` that the environment gives."""
    names = {field: f"{PREFIX}{field.upper()}" for field in KafkaAccess.model_fields}
    return {field: environment[name] for field, name in names.items() if environment.get(name)}


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
