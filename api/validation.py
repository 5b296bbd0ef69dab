"""Events → the verdict that ingestion would give, by its own configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import structlog

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import verdicts, violation_parts
from jobs.ingestion.event_topic_settings import topic_of_type
from jobs.ingestion.validator import EventValidator
from jobs.settings.known_part import known_part
from metering.contracts.model import Contract

log = structlog.get_logger()

MAX_BATCH_EVENTS = 2_000
FEW_EVENTS = 200
"""While fewer wait, the validator pauses after each call for as long as the call took: a call for one event takes as
much CPU as one for a hundred, so more of them are validated together.
"""
MAX_PAUSE_SECONDS = 0.1
"""The first call in a process takes seconds."""


@dataclass(frozen=True)
class Verdict:
    """What ingestion would make of one event. `reason` is null if it is valid; else `rule` is broken at `path`."""

    id: str | None
    source: str | None
    account: str | None
    type: str | None = None
    reason: str | None = None
    path: str | None = None
    rule: str | None = None


@dataclass(frozen=True)
class _Rules:
    """What a configuration of ingestion makes of events."""

    validator: EventValidator
    contracts: Mapping[str, Contract]
    max_record_bytes: int
    config: IngestionConfig


class IngestionNotStarted(Exception):
    """Ingestion has never been started on this database, so the contracts in force are not known."""


class TopicEnds(Exception):
    """The topic of an event is being ended (`weir topics remove`), and no other takes the event."""


class Validator:
    """Validates events of many requests at once: a call costs much the same for one event as for a hundred."""

    def __init__(self) -> None:
        self._config: dict[str, Any] | None = None
        self._rules: _Rules | None = None
        self._ending: frozenset[str] = frozenset()
        self._waiting: list[tuple[Sequence[bytes], asyncio.Future[list[Verdict]]]] = []
        self._working: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "validator")

    @property
    def is_ready(self) -> bool:
        """Whether it knows the contracts."""
        return self._rules is not None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of events that ingestion reads. Raises IngestionNotStarted."""
        return self._config_in_force().topics

    @property
    def chooses_topics(self) -> bool:
        """Whether not every event goes to the first topic. Raises IngestionNotStarted."""
        return len(self.topics) > 1 or not self._ending.isdisjoint(self.topics)

    def topic_of(self, event_type: str | None) -> str:
        """The topic that events of a type are written to. Raises IngestionNotStarted and TopicEnds."""
        config = self._config_in_force()
        if self._ending.isdisjoint(config.topics):
            return config.topic_of(event_type)
        read_on = [event_topic for event_topic in config.events if event_topic.topic not in self._ending]
        if (topic := topic_of_type(event_type, read_on)) is None:
            raise TopicEnds
        return topic

    def avoid(self, ending: Collection[str]) -> None:
        """Write to none of these topics from now on: the next start of ingestion may leave them out."""
        self._ending = frozenset(ending)

    def _config_in_force(self) -> IngestionConfig:
        if self._rules is None:
            raise IngestionNotStarted
        return self._rules.config

    def use(self, config: Mapping[str, Any]) -> None:
        """Validate by this configuration of ingestion (`jobs.config`) from the next call on. Raises ValueError."""
        if config != self._config:
            rules, unknown = known_part(IngestionConfig, config)
            if unknown:
                log.warning("ingestion has settings of another version, which do not validate here", settings=unknown)
            self._rules = _Rules(rules.validator(), rules.contracts_in_force(), rules.max_record_bytes, rules)
            self._config = dict(config)

    async def verdicts(self, documents: Sequence[bytes]) -> list[Verdict]:
        """One for each document, in their order. Raises IngestionNotStarted."""
        if self._rules is None:
            raise IngestionNotStarted
        answer: asyncio.Future[list[Verdict]] = asyncio.get_running_loop().create_future()
        self._waiting.append((documents, answer))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        """Runs until no request waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                requests = self._next()
                documents = [document for request, _ in requests for document in request]
                assert self._rules is not None, "asked for before anybody waits"
                try:
                    began = loop.time()
                    found = await loop.run_in_executor(self._thread, _verdicts, documents, self._rules)
                except Exception as error:  # noqa: BLE001 -- whoever waits gets it; the next ones are validated
                    for _, answer in requests:
                        if not answer.cancelled():
                            answer.set_exception(error)
                    continue
                start = 0
                for request, answer in requests:
                    if not answer.cancelled():
                        answer.set_result(found[start : start + len(request)])
                    start += len(request)
                if self._waiting and sum(len(request) for request, _ in self._waiting) < FEW_EVENTS:
                    await asyncio.sleep(min(loop.time() - began, MAX_PAUSE_SECONDS))
        finally:
            self._working = None

    def _next(self) -> list[tuple[Sequence[bytes], asyncio.Future[list[Verdict]]]]:
        """Who has waited longest, as many as are validated at once; at least one, unless all have gone."""
        self._waiting = [(documents, answer) for documents, answer in self._waiting if not answer.done()]
        count, taken = 0, 0
        for documents, _ in self._waiting:
            if taken and count + len(documents) > MAX_BATCH_EVENTS:
                break
            count, taken = count + len(documents), taken + 1
        requests, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return requests


def _verdicts(documents: Sequence[bytes], rules: _Rules) -> list[Verdict]:
    found = []
    for row in verdicts(documents, rules.validator, rules.max_record_bytes).iter_rows(named=True):
        who = (row["id"], row["source"], row["account"], row["type"])
        if row["reason"] is None:
            found.append(Verdict(*who))
        else:
            violated = violation_parts(row["violation"] or "", rules.contracts.get(row["type"] or ""))
            found.append(Verdict(*who, row["reason"], violated["path"], violated["rule"]))
    return found
