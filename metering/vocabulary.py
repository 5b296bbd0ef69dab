"""The closed sets of words that events, tables, metrics, commands and pages share. Each is defined only here."""

from __future__ import annotations

from enum import StrEnum


class Job(StrEnum):
    """The applications, in the order in which data flows through them and they are started."""

    INGESTION = "ingestion"
    SESSIONIZATION = "sessionization"
    JOINS = "joins"
    BILLING = "billing"
    ANALYTICS = "analytics"
    """Only where a view is declared."""


ALWAYS = tuple(job for job in Job if job is not Job.ANALYTICS)
"""The applications of every installation."""


class EventType(StrEnum):
    """CloudEvents types of the first release. What others are, their contracts say; without one they are counted."""

    REQUEST = "ai.inference.request.v1"
    COMPLETION = "ai.inference.completion.v1"
    USAGE = "ai.inference.usage.v1"
    HEARTBEAT = "source.heartbeat.v1"


class Family(StrEnum):
    """How an event takes part in outcomes, by its contract."""

    REQUEST = "request"
    COMPLETION = "completion"
    BOTH = "both"
    """A request and its completion in one."""
    QUANTITY = "quantity"
    """A quantity of its own, of no request: gateways that send one event per token type."""
    HEARTBEAT = "heartbeat"
    """Nothing: its source is alive."""
    REVERSAL = "reversal"
    """It takes back what its request bills: the audit does that. It is in no outcome."""


REQUESTS = (Family.REQUEST.value, Family.BOTH.value)
"""Families that say that a request began."""
COMPLETIONS = (Family.COMPLETION.value, Family.BOTH.value)
"""Families that report the end of a request, and its quantities."""
OF_REQUESTS = (Family.REQUEST.value, Family.COMPLETION.value, Family.BOTH.value)
"""All that speak of a request: several such events may be one outcome."""
REPORTING = (*COMPLETIONS, Family.QUANTITY.value)
"""Families that report quantities."""
BILLABLE = (*OF_REQUESTS, Family.QUANTITY.value)
"""All that an outcome is made of."""


class Disposition(StrEnum):
    """What became of a Kafka record. Every record has exactly one row and one disposition."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"


class Reason(StrEnum):
    """Why a record is rejected: a dead letter's `reason` and a metric's label. The first that applies is given."""

    UNSTAMPED = "unstamped"
    """Its producer set when it was received; as it came to the topic before that had LogAppendTime, for one."""
    NOT_UTF8 = "not_utf8"
    NUL_CHARACTER = "nul_character"
    """An escaped U+0000, which no text column of a database can hold; looked for before the JSON is read."""
    MALFORMED = "malformed"
    """Not one RFC 8259 object: broken, empty, a second document, a duplicate key, nested deeper than 999 levels.

    Or in CloudEvents' binary mode with headers of which no event can be made."""
    INVALID_SPECVERSION = "invalid_specversion"
    INVALID_ID = "invalid_id"
    INVALID_SOURCE = "invalid_source"
    INVALID_TYPE = "invalid_type"
    WRONG_TOPIC = "wrong_topic"
    """Its topic does not take events of its type (`types` in `events`)."""
    MISSING_SUBJECT = "missing_subject"
    INVALID_SUBJECT = "invalid_subject"
    INVALID_TIME = "invalid_time"
    INVALID_SENTTIME = "invalid_senttime"
    INVALID_SEQUENCE = "invalid_sequence"
    """`sequence` is no whole number from 0 to 10^18 - 1, or `sourceepoch` is neither text nor a whole number."""
    INVALID_DATA = "invalid_data"
    """`data` is no object, or a field of it has the wrong type."""
    INVALID_REQUEST_ID = "invalid_request_id"
    INVALID_MODEL = "invalid_model"
    INVALID_STATUS = "invalid_status"
    INVALID_USAGE_SOURCE = "invalid_usage_source"
    INVALID_TOKENS = "invalid_tokens"
    INVALID_CACHED = "invalid_cached"
    INVALID_LATENCY = "invalid_latency"
    INCONSISTENT_QUANTITIES = "inconsistent_quantities"
    """It reports more of what is part of a quantity than of the quantity (`x-weir-includes`)."""
    UNLISTED_REVERSAL = "unlisted_reversal"
    """A reversal of a source that `reversal.sources` does not list."""
    INVALID_RECEPTION = "invalid_reception"
    """A record of the past whose mark of its first reception is no instant, too long ago, or ahead."""
    TOO_OLD = "too_old"
    FUTURE = "future"
    INVALID_CATALOG_CHANGE = "invalid_catalog_change"
    """It cannot be applied, or is ambiguous: a member occurs twice, or it is nested beyond 64 levels."""
    TOO_LARGE = "too_large"
    """Key and value have more bytes, unpacked, than `max_record_bytes`; given before any other."""
    UNREADABLE = "unreadable"
    """It ended the driver each time that it was read, also when nothing else was. Given before any other."""
    SKIPPED = "skipped"
    """An operator skipped it before it was read. Takes precedence over all others."""


class ReceptionMark(StrEnum):
    """What becomes of a record's mark of its first reception: a metric's label."""

    TRUSTED = "trusted"
    IGNORED = "ignored"
    """The configuration does not trust marks of its source."""


class Isolation(StrEnum):
    """Why a record is not validated; also a dead letter's reason and a metric's label."""

    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"
    SKIPPED = "skipped"


class Status(StrEnum):
    """How the model's answer ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    ERROR = "error"


class UsageSource(StrEnum):
    """Whose count a completion reports."""

    PROVIDER = "provider"
    ESTIMATED = "estimated"
    PARTIAL = "partial"


class Outcome(StrEnum):
    """What became of a request or completion."""

    MATCHED = "matched"
    ABANDONED = "abandoned"
    ORPHANED = "orphaned"
    SUPERSEDED = "superseded"


class UsageCause(StrEnum):
    """Why there is a row of usage."""

    STREAM = "stream"
    """An outcome was decided. Only these rows are classified by their arrival; any other inherits the decision of the
    row that it negates or replaces."""
    DUPLICATE = "duplicate"
    """An event was accepted twice: beyond the horizon within which ingestion knows what it has seen."""
    REJOINED = "rejoined"
    """An abandoned request and an orphaned completion are one pair."""
    REPRICED = "repriced"
    """A price came after the usage that it is for, or holds from before it."""
    SCHEMA_ADDED = "schema_added"
    """The contract of a type came after its events."""
    CONTRACTED = "contracted"
    """What earlier releases wrote for SCHEMA_ADDED; their rows keep it."""
    RESTATED = "restated"
    """A better report of the request came after one that was billed."""
    REVERSED = "reversed"
    """A reversal takes it back, or a part of it."""
    ONCE_PER = "once_per"
    """A meter counts one outcome of each content (`once_per`), and this is another one, or has become the one."""
    DECIDED = "decided"
    """Nothing is billed: a decision about a waiting straggler (`corrects_lsns`). Also its `outcome`."""


CORRECTING = tuple(cause for cause in UsageCause if cause is not UsageCause.DECIDED)
"""Causes of what is billed, and so of what changes a window."""


class LatePolicy(StrEnum):
    """What a meter's straggler does: it changes its closed window, is only recorded, or waits for a decision."""

    CORRECT = "correct"
    DROP = "drop"
    HOLD = "hold"


class Decision(StrEnum):
    """The decision about a straggler. Of a row that replaces several, the first of these applies."""

    CORRECT = "correct"
    """It has changed its window, by its policy or its expired deadline."""
    APPROVE = "approve"
    """It waited, and has changed its window by a person's decision."""
    HOLD = "hold"
    """It waits, and nobody is billed for it."""
    DROP = "drop"
    """Nobody is billed for it, by its policy or its expired deadline."""
    REJECT = "reject"
    """Nobody is billed for it, by a person's decision."""


BILLED = (Decision.CORRECT, Decision.APPROVE)
"""What was decided of stragglers that are in their windows."""


class Cause(StrEnum):
    """What an application waits for, when it cannot go on."""

    KAFKA = "kafka"
    DATABASE = "database"
    STORE = "store"
    BROKER_CLOCK = "broker_clock"
    MEMORY = "memory"


class Published(StrEnum):
    """What billing publishes to Kafka, each on the topic of that name, in publishing order."""

    CORRECTIONS = "corrections"
    """Every one, once made never changed: appended."""
    WINDOWS = "windows"
    """The newest state of each: by its key a table, compacted."""


ORDERED_EVENTS = "events.ordered"
"""The topic on which billing publishes accepted events again, in the order of event time, where it is wanted."""


class End(StrEnum):
    """How a driver ended without being asked to: `exits.how`."""

    CRASHED = "crashed"
    REFUSED = "refused"
    FENCED = "fenced"


class SessionChange(StrEnum):
    """What may become of a session in a batch, in the order in which it is done."""

    RETRACTED = "retracted"
    """It had closed, and a late event makes another of it."""
    ABSORBED = "absorbed"
    """While both were open it became one with another."""
    EXTENDED = "extended"
    BEGUN = "begun"


class SourceState(StrEnum):
    """Whether a source was heard of lately."""

    ACTIVE = "active"
    SILENT = "silent"
