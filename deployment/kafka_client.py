"""What a Kafka client of a `weir` command is made with: the address, and the credentials the environment has for it."""

from __future__ import annotations

import os

from pydantic import ValidationError

from deployment.errors import CannotRun
from jobs.runtime.environment import variable_sentence
from jobs.runtime.kafka.access import KafkaAccess, KafkaSettings


def kafka_client(bootstrap: str) -> KafkaSettings:
    """Settings of librdkafka. Raises CannotRun when the environment's are incomplete."""
    return kafka_access(bootstrap).librdkafka()


def kafka_access(bootstrap: str) -> KafkaAccess:
    """How these brokers let us in. Raises CannotRun when the environment's words for it are incomplete."""
    try:
        return KafkaAccess.read(os.environ, bootstrap)
    except ValidationError as error:
        raise CannotRun("; ".join(variable_sentence(problem, "kafka") for problem in error.errors())) from None
