"""Topics of events in the configuration, the types that each takes, and topics that end."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from api.events import in_topics
from api.own_writes import _awaited
from api.problems import Problem
from api.producer import Record
from api.validation import Validator, Verdict
from cli.redrive.command import _redriven
from cli.redrive.letters import Letter
from cli.redrive.offline import Offline
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import records_of, verdicts
from jobs.ingestion.event_topic_settings import topics_in
from jobs.ingestion.topic_removals import Removal, removals_entry, removed_since, topics_listed
from jobs.runtime.effective_rules import EffectiveRules
from jobs.runtime.errors import Refused
from jobs.runtime.kafka.heartbeat import heartbeat
from jobs.runtime.kafka.replay_mark import Rejected

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TWO = [{"topic": "events"}, {"topic": "gateway", "types": ["gpu.v1", "ai.inference.usage.v1"]}]


def event(kind: str, **more: Any) -> bytes:
    return json.dumps(
        {"specversion": "1.0", "type": kind, "source": "s", "id": "1", "subject": "a", "time": "2026-01-01T00:00:00Z"}
        | {"data": {}}
        | more
    ).encode()


def reasons(config: IngestionConfig, *records: tuple[str, bytes]) -> list[str | None]:
    table = records_of([value for _, value in records], topics=[topic for topic, _ in records])
    validator = config.validator()
    found: list[str | None] = validator.validate(table)["reason"].to_pylist()
    assert validator.validate_strictly(table)["reason"].to_pylist() == found
    return found


def test_a_stored_configuration_of_several_topics_is_read_as_it_was_given() -> None:
    config = IngestionConfig.model_validate({"events": TWO})
    stored = config.model_dump(mode="json")
    assert IngestionConfig.model_validate(stored) == config
    assert config.topics == topics_in(stored) == ("events", "gateway")
    assert config.topic == "events"
    assert [config.topic_of(kind) for kind in ("gpu.v1", "other.v1", None)] == ["gateway", "events", "events"]
    assert topics_in(config.deciding) == config.topics


def test_a_configuration_of_one_topic_is_stored_as_before() -> None:
    for config in (IngestionConfig(), IngestionConfig(topic="mine")):
        assert "events" not in config.model_dump(mode="json")
        assert "events" not in config.deciding
        assert topics_in(config.model_dump(mode="json")) == config.topics == (config.topic,)
    assert topics_in(None) == topics_in({}) == ("events",)


def test_a_list_where_one_name_belongs_is_refused_with_what_to_write() -> None:
    with pytest.raises(ValidationError, match=r"list several as `events: \[{topic: NAME}, …\]`"):
        IngestionConfig.model_validate({"topic": ["a", "b"]})
    assert IngestionConfig.model_validate({"events": [{"topic": "mine"}]}).topics == ("mine",)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"events": [{"topic": "a"}, {"topic": "a"}]}, "listed twice"),
        ({"events": [{"topic": "a"}, {"topic": "windows"}]}, "Weir's own"),
        ({"events": [{"topic": "a"}, {"topic": "catalog.prices"}]}, "Weir's own"),
        ({"events": [{"topic": "a", "types": ["x"]}, {"topic": "b", "types": ["y"]}]}, "each topic lists `types`"),
        ({"topic": "x", "events": TWO}, "both given"),
        ({"events": [{"topic": "a b"}]}, "pattern"),
        ({"events": [{"topic": "a", "format": "cloudevents-binary"}]}, "leave out `format`: ingestion recognizes"),
    ],
)
def test_topics_that_cannot_be_read_side_by_side_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        IngestionConfig.model_validate(given)


def test_names_that_differ_in_case_are_two_topics() -> None:
    assert IngestionConfig.model_validate({"events": [{"topic": "a"}, {"topic": "A"}]}).topics == ("a", "A")


def test_an_event_of_a_type_that_its_topic_does_not_take_is_a_dead_letter() -> None:
    config = IngestionConfig.model_validate({"events": TWO})
    assert reasons(
        config,
        ("gateway", event("gpu.v1")),
        ("gateway", event("other.v1")),
        ("gateway", heartbeat(1, 0, NOW, "gateway")),
        ("gateway", b"{"),
        ("gateway", event("other.v1", id="")),
        ("gateway", event("ai.inference.usage.v1")),
        ("events", event("other.v1")),
        ("events", event("gpu.v1")),
        # A batch is taken whole or not at all.
        ("gateway", b"[" + event("gpu.v1") + b"," + event("other.v1") + b"]"),
    ) == [None, "wrong_topic", None, "malformed", "invalid_id", "invalid_request_id", None, None, "wrong_topic"]
    # What is not in a topic yet, as for the API, which chooses it by the type.
    found = verdicts([event("other.v1")], config.validator(), config.max_record_bytes)
    assert found["reason"].to_list() == [None]


def removal(topic: str) -> Removal:
    return Removal(topic, "moved", "me", NOW, 0, 0)


def history(*topics: str) -> tuple[EffectiveRules, ...]:
    listed = {"events": [{"topic": topic, "types": []} for topic in topics]} if topics else {}
    return (EffectiveRules(1, listed, NOW),)


def test_a_topic_ends_only_if_somebody_has_removed_it() -> None:
    before = topics_listed(history("a", "b"))
    with pytest.raises(Refused, match="weir topics remove b"):
        removed_since(before, ["a"], [])
    with pytest.raises(Refused, match="weir topics remove b"):
        removed_since(before, ["a"], [removal("c")])
    assert removed_since(before, ["a"], [removal("b")]) == [removal("b")]
    assert removed_since(before, ["a", "b", "c"], [removal("b")]) == []
    assert removed_since(topics_listed(history()), ["other"], []) == removed_since((), ["a"], []) == []
    # Rules list no topic that was configured alone; its removal is told all the same.
    assert removed_since((), ["b"], [removal("a")]) == [removal("a")]
    assert removals_entry([]) == {}
    [entry] = removals_entry([removal("b")])["removed_topics"]
    assert (entry["topic"], entry["unread"], entry["removed_by"]) == ("b", 0, "me")


class Sent:
    """What redriven letters would be sent to."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def send(self, topic: str, *_: Any) -> None:
        self.topics.append(topic)


def test_a_dead_letter_goes_back_where_it_came_from_or_where_its_type_belongs() -> None:
    config = IngestionConfig.model_validate({"events": TWO})

    def letter(topic: str, reason: str) -> Letter:
        place = Rejected(topic, 0, 1)
        return Letter(place, place, NOW, NOW, reason, None, None, b"")

    letters = [
        (letter("events", "malformed"), event("gpu.v1")),
        (letter("gateway", "malformed"), event("gpu.v1")),
        (letter("gateway", "malformed"), event("other.v1")),
        (letter("gateway", "wrong_topic"), event("other.v1")),
        (letter("gone", "malformed"), event("gpu.v1")),
        (letter("gone", "malformed"), event("other.v1")),
    ]
    sent: Any = Sent()
    rows = list(_redriven(letters, Offline(config, lambda: NOW), sent, is_edited=True))
    assert sent.topics == ["events", "gateway", "events", "gateway", "events"]
    assert [row["detail"].partition(":")[0] for row in rows] == ["wrong_topic"]  # type: ignore[union-attr]


TYPES = ("gpu.v1", "calls.v1", "other.v1", "more.v1")
"""Of no contract, so each event is valid."""
SEVERAL = st.lists(
    st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True).map(tuple), min_size=1, max_size=3
).flatmap(lambda restricted: st.permutations([*restricted, ()]))


@given(SEVERAL, st.lists(st.sampled_from(TYPES[:3]), min_size=1, max_size=3), st.integers(0, 3))
def test_a_batch_is_redriven_as_a_whole_to_a_topic_that_takes_each_of_its_events(
    types: list[tuple[str, ...]], events: list[str], came_in: int
) -> None:
    """All events of a record are accepted or none, so no topic that refuses one of them can take it."""
    topics = [{"topic": f"t{number}", "types": list(listed)} for number, listed in enumerate(types)]
    config = IngestionConfig.model_validate({"events": topics})
    batch = b"[" + b",".join(event(kind, id=str(number)) for number, kind in enumerate(events)) + b"]"
    place = Rejected(f"t{came_in % len(types)}", 0, 1)
    letter = Letter(place, place, NOW, NOW, "wrong_topic", None, None, batch)
    sent: Any = Sent()
    assert list(_redriven([(letter, batch)], Offline(config, lambda: NOW), sent, is_edited=False)) == []
    [topic] = sent.topics
    taken = dict(zip([f"t{number}" for number in range(len(types))], types, strict=True))[topic]
    assert set(events) <= set(taken) or not taken
    assert set(reasons(config, (topic, batch))) == {None}


def test_posted_events_are_written_to_the_topic_of_their_type_and_awaited_there() -> None:
    validator = Validator()
    services: Any = SimpleNamespace(validator=validator)
    records = [Record(b"a", b"1"), Record(b"a", b"2")]
    posted = [Verdict("1", "s", "a", "gpu.v1"), Verdict("2", "s", "a", "other.v1")]
    validator.use({"topic": "mine"})
    assert in_topics(services, records, posted) == records
    validator.use(IngestionConfig.model_validate({"events": TWO}).model_dump(mode="json"))
    assert [record.topic for record in in_topics(services, records, posted)] == ["gateway", "events"]
    awaited = _awaited("gateway/0/7,events/0/3,gateway/0/5", validator)
    assert awaited.required == {("gateway", 0): 8, ("events", 0): 4}
    with pytest.raises(Problem):
        _awaited("mine/0/7", validator)


def test_events_of_any_type_belong_to_the_first_topic_that_takes_all() -> None:
    """There `weir traffic` sends what it makes."""
    assert IngestionConfig.model_validate({"events": [*reversed(TWO), {"topic": "more"}]}).topic_of(None) == "events"
    assert IngestionConfig(topic="mine").topic_of(None) == "mine"


def test_events_are_not_posted_to_a_topic_that_is_being_ended() -> None:
    """What comes in it when ingestion starts without it is read by nobody, although it was acknowledged."""
    validator = Validator()
    services: Any = SimpleNamespace(validator=validator)
    records, posted = [Record(b"a", b"1")], [Verdict("1", "s", "a", "gpu.v1")]
    validator.use(IngestionConfig.model_validate({"events": TWO}).model_dump(mode="json"))
    validator.avoid(["gateway"])
    assert [record.topic for record in in_topics(services, records, posted)] == ["events"]
    assert _awaited("gateway/0/7", validator).required == {("gateway", 0): 8}
    validator.avoid(["gateway", "events"])
    with pytest.raises(Problem) as refused:
        in_topics(services, records, posted)
    assert refused.value.status == HTTPStatus.SERVICE_UNAVAILABLE
    validator.use({"topic": "events"})
    with pytest.raises(Problem):
        in_topics(services, records, posted)
    # Ingestion was started with another.
    validator.use({"topic": "other"})
    assert in_topics(services, records, posted) == records
