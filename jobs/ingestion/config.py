"""The configuration of ingestion."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from jobs.ingestion.config_groups import DAY_SECONDS, Backfill, Clocks, Reversal, SourceConvention
from jobs.ingestion.conventions import refuse_unknown_quantities
from jobs.ingestion.event_topic_settings import (
    MAX_TOPICS,
    EventTopicSettings,
    TopicName,
    refuse_unfit_topics,
    restricted,
    topic_of_types,
)
from jobs.ingestion.fingerprints import DIGEST
from jobs.ingestion.limits_of_meters import (
    limited,
    refuse_unknown_attributes,
    refuse_unknown_conditions,
    refuse_unknown_contents,
    refuse_unknown_dimensions,
    refuse_unknown_members,
)
from jobs.ingestion.repeats import Horizons
from jobs.ingestion.validator import EventValidator
from jobs.runtime.config import JobConfig
from jobs.runtime.effective_rules import History
from jobs.runtime.errors import Refused
from jobs.settings.stored_meters import conditions_stored, of_period_stored, once_stored, stored
from jobs.streams import EVENTS_TOPIC
from metering.contracts.details import has_details as has_token_details
from metering.contracts.details import without_details, yielding
from metering.contracts.field_reader import ContractRefused
from metering.contracts.includes import INCLUDES, without_includes
from metering.contracts.keywords import Document
from metering.contracts.model import Contract
from metering.contracts.reversals import is_reversal, without_reversals
from metering.contracts.schema import SHIPPED_REF, contracts_of
from metering.contracts.shipped import shipped
from metering.limits import MAX_NAME_BYTES
from metering.meters import DETAILS, Meter, columns_of

MAX_CONTRACTS = 100
_TYPE = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES, "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$"}
ContractDocument = Annotated[
    dict[str, Any], Field(json_schema_extra={"required": ["$id"], "properties": {"$id": dict(_TYPE)}})
]
"""A JSON Schema, as far as the chart's schema can check it; `contracts_of` refuses all else."""


class IngestionConfig(JobConfig):
    """`jobs.ingestion.config`."""

    DECIDING: ClassVar[tuple[str, ...]] = (
        *("accept_past_seconds", "accept_future_seconds", "clocks", "backfill"),
        *("dedupe_horizon_seconds", "exact_horizon_seconds", "max_record_bytes"),
    )

    trigger_interval_seconds: float = Field(
        default=5, gt=0, le=600, description="Seconds from the start of one micro-batch to the next; at most 600."
    )
    min_trigger_interval_seconds: float = Field(
        default=1,
        ge=0.5,
        le=600,
        description="While events come, at most 1,000 of them and 1 MiB at once, the next micro-batch follows after so "
        "many seconds, or later where all applications would use more than about a tenth of a core more for that. A "
        "value from trigger_interval_seconds on changes nothing.",
    )
    heartbeat_interval_seconds: float = Field(
        default=5,
        gt=0,
        le=60,
        description="Seconds between heartbeats to every partition: how long a quiet partition may hold the frontier. "
        "A minute while no window, waiting request or session is open.",
    )
    dedupe_horizon_seconds: int = Field(
        default=35 * DAY_SECONDS,
        ge=1,
        le=3_660 * DAY_SECONDS,
        description="How long an identity is remembered, in seconds of received_at. A value above the sum of "
        "accept_past_seconds and accept_future_seconds finds no further duplicates.",
    )
    exact_horizon_seconds: int = Field(
        default=3_600,
        ge=1,
        le=7 * DAY_SECONDS,
        description="How long the identity of every event is kept in memory, in seconds of received_at; identities "
        "of older events and of devices are kept longer. Never more than dedupe_horizon_seconds.",
    )
    identity_memory_mib: int = Field(
        default=256,
        ge=128,
        le=65_536,
        description="Memory for identities, in MiB: half of it for the newest, 44 bytes each; 4 to 128 bits for each "
        "of the others within the exact horizon, and for times of older events. Below 64 bits, parts of the "
        "journal are read in vain. Identities without room are looked up in the journal.",
    )
    driver_rows: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Batches of at most so many records are written to the journal by the driver, larger ones (up to "
        "max_records_per_batch) by tasks on executors; the journal is the same, to its numbers. Without it 50,000 "
        "where there are executors; else the driver writes all.",
    )
    accept_past_seconds: int = Field(
        default=35 * DAY_SECONDS,
        ge=60,
        le=3_660 * DAY_SECONDS,
        description="An event that occurred longer ago than this when it was received is rejected as too_old.",
    )
    accept_future_seconds: int = Field(
        default=300,
        ge=0,
        le=DAY_SECONDS,
        description="An event that occurs later than this after it was received is rejected as future.",
    )
    max_clock_ahead_seconds: int = Field(
        default=60,
        ge=1,
        le=300,
        description="Ingestion waits for a record that a broker stamped further ahead of the database's clock; at most "
        "half of joins' shortest completion timeout.",
    )
    max_record_bytes: int = Field(
        default=1_048_576,
        ge=1_024,
        le=67_108_864,
        description="A record whose key and value have more bytes than this, unpacked, is rejected as too_large.",
    )
    batches: bool = Field(
        default=True,
        description="Whether a record that is a JSON array is a batch of events. Otherwise it is rejected as "
        "malformed. For dedupe_horizon_seconds after one a downgrade below schema 0064 is refused: upgrade from such "
        "a version with false if you may want to go back.",
    )
    contracts: tuple[ContractDocument, ...] = Field(
        default=(),
        max_length=MAX_CONTRACTS,
        description="What events of further types are: JSON Schema documents, each with the type as its `$id`. One "
        "with the `$id` of a contract that Weir ships replaces that.",
    )
    conventions: tuple[SourceConvention, ...] = Field(
        default=(),
        max_length=100,
        description="Which quantities are part of others in the events of some sources, where they differ from their "
        "contract.",
    )
    shipped_conventions: bool | None = Field(
        default=None,
        description="Whether the x-weir-includes of the contracts that Weir ships apply, so that cached tokens with a "
        "price of their own are not billed as input tokens, too. Left out: they apply in a new installation; one that "
        "an earlier release has begun continues without them, until they are turned on here.",
    )
    token_details: bool | None = Field(
        default=None,
        description="Whether the contracts that Weir ships read parts of the tokens (cache_write_tokens, "
        "reasoning_tokens, and those of audio and images), where no contract of your own does. Left out: they do in a "
        "new installation; off in an upgraded one until it is turned on here.",
    )
    clocks: Clocks = Field(default_factory=Clocks, description="Whose clock is corrected, and from what error on.")
    backfill: Backfill = Field(
        default_factory=Backfill, description="Whose events of the past are taken, and how far back (`weir backfill`)."
    )
    reversal: Reversal = Field(
        default_factory=Reversal, description="Who may take back what a request bills (`weir usage reverse`)."
    )
    source_silent_after_seconds: int = Field(
        default=900,
        ge=1,
        le=30 * DAY_SECONDS,
        description="A source is silent when nothing was received from it for this long.",
    )
    source_retired_after_seconds: int = Field(
        default=DAY_SECONDS,
        ge=1,
        le=366 * DAY_SECONDS,
        description="A source that was silent for this long is retired: no alert speaks of it any more.",
    )
    source_seen_once_retired_after_seconds: int = Field(
        default=3_600,
        ge=1,
        le=366 * DAY_SECONDS,
        description="The same for a source that was active for a minute at most, so that a flood of names ends soon.",
    )
    dead_letter_spike_records: int = Field(
        default=100,
        ge=1,
        le=1_000_000_000,
        description="This many records that are rejected for one reason within ten minutes are a spike, about which "
        "webhooks are called; it has ended when they are fewer than half.",
    )
    topic: TopicName = Field(default=EVENTS_TOPIC, description="The Kafka topic of events, if it is only one.")
    events: tuple[EventTopicSettings, ...] = Field(
        default=(),
        max_length=MAX_TOPICS,
        description="The topics of events, instead of `topic`: `events: [{topic: NAME}, …]`. One of them is ended with "
        "`weir topics remove`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _names_topics_once(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        events = given.get("events")
        if isinstance(given.get("topic"), list | tuple):
            raise ValueError("`topic` is the name of one topic: list several as `events: [{topic: NAME}, …]`")
        first = events[0] if isinstance(events, list | tuple) and events else None
        name = first.get("topic") if isinstance(first, dict) else getattr(first, "topic", None)
        if name is None:
            return given
        if given.get("topic", name) != name:
            raise ValueError("`topic` and `events` are both given: leave out `topic`, and list it in `events`")
        return {**given, "topic": name}

    @field_validator("events")
    @classmethod
    def _topics_fit(cls, events: tuple[EventTopicSettings, ...]) -> tuple[EventTopicSettings, ...]:
        refuse_unfit_topics(events)
        return events

    @model_serializer(mode="wrap")
    def _without_events_of_one_topic(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """An API of the release before, which reads what ingestion stores, knows no `events`."""
        dumped: dict[str, Any] = dump(self)
        return dumped if self.events else {name: value for name, value in dumped.items() if name != "events"}

    @model_validator(mode="after")
    def _silence_comes_before_retirement(self) -> IngestionConfig:
        retired, silent = self.source_retired_after_seconds, self.source_silent_after_seconds
        if retired > silent:
            return self
        if "source_retired_after_seconds" not in self.model_fields_set:
            raise ValueError(
                f"source_silent_after_seconds is {silent}, but must be less than source_retired_after_seconds, which "
                f"is {retired} where it is not given: raise that, or lower this"
            )
        raise ValueError(
            f"source_retired_after_seconds is {retired}, but must be greater than source_silent_after_seconds, which "
            f"is {silent}"
        )

    @model_validator(mode="after")
    def _meters_sum_what_contracts_give(self) -> IngestionConfig:
        contracts = self.contracts_in_force()
        refuse_unknown_dimensions(self.dimensions, contracts)
        refuse_unknown_conditions(self.declared, contracts)
        refuse_unknown_contents(self.declared, contracts)
        refuse_unknown_members(self.declared, contracts)
        refuse_unknown_attributes(self.attributes, contracts)
        refuse_unknown_quantities(
            [source_convention.convention.includes for source_convention in self.conventions], contracts
        )
        return self

    @field_validator("contracts")
    @classmethod
    def _are_contracts(cls, documents: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        try:
            contracts_of(documents, shipped())
        except ContractRefused:
            # A contract with another type for a field of reversals wins while no source of reversals is listed.
            contracts_of(documents, without_reversals(shipped()))
        return documents

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of events that are read."""
        return tuple(event_topic.topic for event_topic in self.events) or (self.topic,)

    def topic_of(self, event_type: str | None) -> str:
        """The topic that events of a type are written to."""
        return self.topic_of_record([event_type])

    def topic_of_record(self, event_types: Collection[str | None]) -> str:
        """The topic that takes a record with events of these types whole."""
        return topic_of_types(event_types, self.events) or self.topic

    @property
    def documents(self) -> Mapping[str, Document]:
        """The documents of the effective contracts by type; a replaced one of Weir's is under `weir:<type>`."""
        own = {document["$id"]: document for document in self.contracts}
        given = self._shipped
        return {**given, **own, **{f"{SHIPPED_REF}{name}": given[name] for name in own if name in given}}

    @property
    def _shipped(self) -> Mapping[str, Document]:
        """Without conventions, parts of tokens and reversals where these do not hold: the release before knew none."""
        whole = shipped() if self.token_details is not False else without_details(shipped())
        whole = whole if self.reversal.sources is not None else without_reversals(whole)
        given = yielding(whole, self.contracts)
        return given if self.shipped_conventions is not False else without_includes(given)

    def contracts_in_force(self) -> dict[str, Contract]:
        """The contract of each type, within the limits of the meters."""
        return limited(contracts_of(self.contracts, self._shipped), self.meters)

    def validator(self) -> EventValidator:
        """The validator of records under this configuration."""
        of_sources = [source_convention.convention for source_convention in self.conventions]
        reversing = self.reversal.sources or ()
        return EventValidator(
            *(self.contracts_in_force(), self.clocks.device, self.max_record_bytes, of_sources, reversing),
            takes_batches=self.batches,
            types_of_topics=restricted(self.events),
        )

    def settled(self, history: History, *, is_new: bool) -> IngestionConfig:
        """The configuration with its open settings filled: by the journal's rules so far, or by defaults if `is_new`.

        These are: whether the conventions of shipped contracts apply, whether those contracts read parts of tokens,
        whether there are reversals, which requests the default meter counts, and whether parts of tokens are metered by
        default. Raises Refused where no contract has the column that a meter sums.
        """
        rules = history[-1].rules if history else {}
        counts_some = is_new or Meter.REQUESTS in rules.get("where", {})
        has_details = is_new or set(columns_of(DETAILS)) <= set(rules.get("summed", ()))
        meters = self.settled_meters(bills_failures=not counts_some, has_details=has_details)
        settled: dict[str, Any] = {"meters": meters}
        documents = rules.get("contracts", {})
        of_shipped = [documents.get(f"{SHIPPED_REF}{name}", documents.get(name, {})) for name in shipped()]
        if self.shipped_conventions is None:
            settled["shipped_conventions"] = is_new or any(INCLUDES in document for document in of_shipped)
        if self.token_details is None:
            settled["token_details"] = is_new or any(has_token_details(document) for document in of_shipped)
        if self.reversal.sources is None and (is_new or any(map(is_reversal, of_shipped))):
            settled["reversal"] = self._reversal_without_sources()
        config = self.model_copy(update=settled)
        try:
            refuse_unknown_attributes(config.attributes, config.contracts_in_force())
        except ValueError as error:
            hint = "" if config.token_details else "; with `token_details: true` in jobs.ingestion Weir's read more"
            raise Refused(f"{error}{hint}") from None
        return config

    def _reversal_without_sources(self) -> Reversal:
        """No source may take anything back; where its own contracts leave no room for reversals, there are none."""
        try:
            contracts_of(self.contracts, shipped())
        except ContractRefused:
            return Reversal()
        return Reversal(sources=())

    @property
    def deciding(self) -> dict[str, Any]:
        """With the contracts in effect, shipped or not, the digest's version, and the conditions of meters."""
        limits = {name: f"{m.max_per_event:f}" for name, m in self.meters.items() if m.max_per_event is not None}
        summed = sorted(columns_of(self.declared))
        rules: dict[str, Any] = {"contracts": dict(self.documents), "digest": DIGEST}
        if not self.batches:
            rules["batches"] = False
        if self.events:
            rules["events"] = [event_topic.model_dump(mode="json") for event_topic in self.events]
        if self.conventions:
            rules["conventions"] = [source_convention.model_dump(mode="json") for source_convention in self.conventions]
        if self.reversal.sources is not None:
            rules["reversal"] = self.reversal.model_dump(mode="json")
        if where := conditions_stored(stored(self.declared)):
            rules["where"] = where
        if once_per := once_stored(stored(self.declared)):
            rules["once_per"] = once_per
        if of_period := of_period_stored(stored(self.declared)):
            rules["of_period"] = of_period
        return {**super().deciding, **rules, "summed": summed, "max_per_event": limits}

    @property
    def max_clock_ahead(self) -> timedelta:
        """The limit as a duration."""
        return timedelta(seconds=self.max_clock_ahead_seconds)

    @property
    def horizons(self) -> Horizons:
        """How far before an event its first may have been received."""
        whole = timedelta(seconds=self.dedupe_horizon_seconds)
        exact = min(timedelta(seconds=self.exact_horizon_seconds), whole)
        return Horizons(exact, whole, timedelta(seconds=self.accept_future_seconds))

    @property
    def identity_memory_bytes(self) -> int:
        """`identity_memory_mib` in bytes."""
        return self.identity_memory_mib << 20
