"""Several topics of events: their names, and the types of events that each takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from jobs.settings.names import Name
from jobs.streams import EVENTS_TOPIC, HEARTBEATS_TOPIC, CatalogTopic
from metering.vocabulary import ORDERED_EVENTS, Published

MAX_TOPICS = 20
OF_WEIR = frozenset(map(str, (*CatalogTopic, *Published, ORDERED_EVENTS, HEARTBEATS_TOPIC)))
"""Topics that hold something else."""
TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]


class EventTopicSettings(BaseModel):
    """A topic of events."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: TopicName = Field(description="The name of the Kafka topic; a capital letter makes it another topic.")
    types: tuple[Name, ...] = Field(
        default=(),
        max_length=100,
        description="The types of events that the topic takes; one of another type is a dead letter, `wrong_topic`. "
        "The API writes events of these types to this topic. Left out: it takes all.",
    )

    @model_validator(mode="before")
    @classmethod
    def _has_no_format(cls, given: Any) -> Any:
        if isinstance(given, dict) and "format" in given:
            raise ValueError(
                "leave out `format`: ingestion recognizes the form of each record (structured, binary, a batch, "
                "framed), so a topic may have several"
            )
        return given


def refuse_unfit_topics(events: Sequence[EventTopicSettings]) -> None:
    """Raises ValueError for topics that cannot be read side by side."""
    names = [event_topic.topic for event_topic in events]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice} is listed twice: list each topic once, with all its types")
    if ours := next((name for name in names if name in OF_WEIR), None):
        raise ValueError(f"{ours} is a topic of Weir's own that holds no events: choose another name")
    if events and all(event_topic.types for event_topic in events):
        raise ValueError("each topic lists `types`: leave them out for one, which takes the events of all other types")


PENDING = "ended_at IS NULL AND withdrawn_at IS NULL"
"""Of a removal of a topic: ingestion was neither started without the topic nor with it since."""
ENDING = f"SELECT topic FROM topic_removals WHERE {PENDING}"
"""Topics that `weir topics remove` has ended while ingestion was not started without them."""


def topic_of_type(event_type: str | None, events: Sequence[EventTopicSettings]) -> str | None:
    """Where events of a type are written: the first topic that lists it, else the first that takes all.

    None where there are no topics.
    """
    return topic_of_types([event_type], events)


def topic_of_types(event_types: Collection[str | None], events: Sequence[EventTopicSettings]) -> str | None:
    """The same for a record that holds events of these types: the first topic that lists them all, else as above.

    So a batch whose events belong to several topics is taken whole by the one that takes all types.
    """
    listing = (event_topic.topic for event_topic in events if set(event_types) <= set(event_topic.types))
    return next(listing, next((event_topic.topic for event_topic in events if not event_topic.types), None))


def topics_in(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The topics of events in a stored configuration of ingestion (`jobs.config`, or rules); at least one."""
    given = config or {}
    listed = tuple(str(event_topic["topic"]) for event_topic in given.get("events") or ())
    return listed or (str(given.get("topic") or EVENTS_TOPIC),)


def restricted(events: Collection[EventTopicSettings]) -> dict[str, tuple[str, ...]]:
    """The types that topics take, of those that do not take all."""
    return {event_topic.topic: event_topic.types for event_topic in events if event_topic.types}
