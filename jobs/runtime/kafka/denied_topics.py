"""A broker that has just started may deny a topic that exists, so a denial is believed only after a while."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from jobs.runtime.errors import NotYet, Refused
from metering.vocabulary import Cause

BELIEVED_AFTER_SECONDS = 60.0
"""Within this a broker has loaded what topics and permissions there are."""
FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)
UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID})


def is_denial(error: KafkaError) -> bool:
    """Whether the broker reports that the topic does not exist, or that access is denied."""
    return error.code() in UNKNOWN | FORBIDDEN


def denied(topic: str, error: KafkaException) -> NotYet:
    """What to wait for after a denial."""
    return NotYet(Cause.KAFKA, f"the broker denies the topic {topic} ({error.args[0].str()}); it may have just started")


class Denials:
    """Since when a driver is denied which topic, over all its attempts. Times are monotonic seconds."""

    def __init__(self, believed_after_seconds: float = BELIEVED_AFTER_SECONDS) -> None:
        self._believed_after_seconds = believed_after_seconds
        self._since: dict[str, float] = {}

    def interrupted(self, topic: str) -> None:
        """The broker knows it, or is unavailable: a later denial is a new one."""
        self._since.pop(topic, None)

    def met(self, topic: str, error: KafkaException, now: float) -> NotYet | Refused:
        """What to raise after a denial: NotYet at first, Refused once it has lasted."""
        since = self._since.setdefault(topic, now)
        if now - since < self._believed_after_seconds:
            return denied(topic, error)
        del self._since[topic]
        reason: KafkaError = error.args[0]
        if reason.code() in FORBIDDEN:
            remedy = "give this user Read, Describe and DescribeConfigs on it (and Write on the topic of events)"
        else:
            remedy = "create it"
        return Refused(f"topic {topic} cannot be read: {reason.str()}; {remedy}, then start again")
