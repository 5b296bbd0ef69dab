"""Kafka's credentials: complete or refused, the same for both clients, never printed, never sent elsewhere."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from jobs.runtime.environment import Environment, variable_of
from jobs.runtime.kafka.access import LIBRDKAFKA_LIMITS, SPARK_LIMITS, KafkaAccess

SECRET = 'a"b\\c'
SIGNED_IN = {
    "WEIR_KAFKA_BOOTSTRAP": "kafka:9093",
    "WEIR_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "WEIR_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
    "WEIR_KAFKA_USERNAME": "weir",
    "WEIR_KAFKA_PASSWORD": SECRET,
    "WEIR_KAFKA_CA_FILE": "/etc/weir-kafka/ca.crt",
}


def test_a_plain_broker_needs_its_address_only() -> None:
    access = KafkaAccess.read({"WEIR_KAFKA_BOOTSTRAP": "kafka:9092", "WEIR_KAFKA_CA_FILE": ""})
    assert access.librdkafka() == {"bootstrap.servers": "kafka:9092", **LIBRDKAFKA_LIMITS}
    assert access.spark() == {"kafka.bootstrap.servers": "kafka:9092", **SPARK_LIMITS}


def test_both_clients_get_the_same_credentials() -> None:
    access = KafkaAccess.read(SIGNED_IN)
    assert access.librdkafka() == {
        "bootstrap.servers": "kafka:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "weir",
        "sasl.password": SECRET,
        "ssl.ca.location": "/etc/weir-kafka/ca.crt",
        **LIBRDKAFKA_LIMITS,
    }
    assert access.spark() == {
        "kafka.bootstrap.servers": "kafka:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="weir" password="a\\"b\\\\c";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/etc/weir-kafka/ca.crt",
        **SPARK_LIMITS,
    }


def test_both_clients_show_the_same_certificate() -> None:
    shows = {"WEIR_KAFKA_SECURITY_PROTOCOL": "SSL", "WEIR_KAFKA_CLIENT_FILE": "/etc/weir/client.pem"}
    access = KafkaAccess.read({"WEIR_KAFKA_BOOTSTRAP": "kafka:9093", **shows})
    assert access.librdkafka() == {
        "bootstrap.servers": "kafka:9093",
        "security.protocol": "SSL",
        "ssl.certificate.location": "/etc/weir/client.pem",
        "ssl.key.location": "/etc/weir/client.pem",
        **LIBRDKAFKA_LIMITS,
    }
    assert access.spark() == {
        "kafka.bootstrap.servers": "kafka:9093",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": "/etc/weir/client.pem",
        **SPARK_LIMITS,
    }
    with pytest.raises(ValidationError, match="PLAINTEXT is not encrypted, but WEIR_KAFKA_CLIENT_FILE"):
        KafkaAccess.read({**shows, "WEIR_KAFKA_BOOTSTRAP": "kafka:9092", "WEIR_KAFKA_SECURITY_PROTOCOL": ""})


def test_the_password_is_not_in_what_python_prints() -> None:
    access = KafkaAccess.read(SIGNED_IN)
    assert SECRET not in repr(access) + str(access) + str(access.model_dump(mode="json"))


def test_credentials_do_not_go_to_another_broker() -> None:
    plain = {"bootstrap.servers": "127.0.0.1:20000", **LIBRDKAFKA_LIMITS}
    assert KafkaAccess.read(SIGNED_IN, "127.0.0.1:20000").librdkafka() == plain
    assert KafkaAccess.read(SIGNED_IN, "kafka:9093").username == "weir"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"WEIR_KAFKA_PASSWORD": ""}, "SASL_SSL needs WEIR_KAFKA_USERNAME and WEIR_KAFKA_PASSWORD"),
        ({"WEIR_KAFKA_SECURITY_PROTOCOL": "SSL"}, "SSL takes no WEIR_KAFKA_USERNAME"),
        ({"WEIR_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT"}, "SASL_PLAINTEXT is not encrypted"),
        ({"WEIR_KAFKA_SECURITY_PROTOCOL": "TLS"}, "'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT' or 'SASL_SSL'"),
        ({"WEIR_KAFKA_SASL_MECHANISM": "GSSAPI"}, "'PLAIN', 'SCRAM-SHA-256' or 'SCRAM-SHA-512'"),
    ],
)
def test_unusable_settings_are_refused_without_repeating_the_password(change: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        KafkaAccess.read({**SIGNED_IN, **change})
    told = "; ".join(problem["msg"] for problem in refusal.value.errors())
    assert said in told
    assert SECRET not in told


def test_a_job_without_its_address_names_the_variable() -> None:
    with pytest.raises(ValidationError) as refusal:
        Environment.read({**SIGNED_IN, "WEIR_KAFKA_BOOTSTRAP": "", "WEIR_TABLES": "/t"})
    assert {variable_of(*problem["loc"]) for problem in refusal.value.errors()} >= {
        "WEIR_KAFKA_BOOTSTRAP",
        "WEIR_POSTGRES_URL",
        "WEIR_JARS",
    }
