"""Posted events: authorization, validation, and the write to Kafka."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from datetime import datetime
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request

from api.bearer_tokens import BadToken
from api.bodies import MAX_BODY_BYTES, events_in, read_body
from api.body_budget import BodyBudget
from api.database_poll import DatabasePoll
from api.elements import Element, members_of
from api.endpoint_store import EndpointStore
from api.ingestion_lag import MAX_LAG_SECONDS, refuse_lag
from api.issuer_keys import IssuerKeys
from api.problems import Problem, unavailable
from api.producer import AcknowledgedProducer, Record
from api.rate_limits import RateLimiter
from api.reader import AccountReader
from api.request_metrics import FORBIDDEN
from api.tables import StoredTables
from api.validation import IngestionNotStarted, TopicEnds, Validator, Verdict
from api.window_stream import WindowStreams
from jobs.ingestion.documents import subject_in
from jobs.ingestion.rules import RECEIPT, TIME_SOURCE, glob_expression
from jobs.streams import HEARTBEAT_SOURCE
from metering.api_keys import DEFAULT_LIMITS, ApiKey, RateLimits, Scope
from metering.instants import Clock, rfc3339

BODY_WITHIN_SECONDS = 15.0
"""How long a client may take to send a body."""
ACCOUNT_ATTRIBUTE = "weir.account"
VALIDATION_TIMEOUT_SECONDS = 15.0
"""How long events may wait for the validator, whose first call in a process takes seconds."""


@dataclass(frozen=True)
class Services:
    """What a request is answered with."""

    database: DatabasePoll
    validator: Validator
    producer: AcknowledgedProducer
    clock: Clock
    body_budget: BodyBudget = field(default_factory=BodyBudget)
    max_lag_seconds: float = MAX_LAG_SECONDS
    """How far ingestion may be behind; 0: as far as it likes."""
    account_attribute: str = ACCOUNT_ATTRIBUTE
    """The attribute of spans, or of their resource, that names the account."""
    reader: AccountReader | None = None
    """Who reads for keys; None: nobody asks."""
    explaining: AccountReader | None = None
    """Who reads for explanations, few at once: each reads files for a while within a session of the database."""
    tables: StoredTables | None = None
    """None: the tables cannot be read here, only the database."""
    streams: WindowStreams | None = None
    """None: changes of windows are not streamed."""
    endpoints: EndpointStore | None = None
    """None: endpoints of webhooks are not managed here."""
    issuer: IssuerKeys | None = None
    """None: only API keys are taken, and no tokens of an identity provider."""
    parsing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a request of spans is parsed, so that few are in memory at once."""
    rate_limits: InitVar[RateLimits] = DEFAULT_LIMITS
    """Of keys that have none of their own."""
    rate_limiter: RateLimiter = field(init=False)

    def __post_init__(self, rate_limits: RateLimits) -> None:
        object.__setattr__(self, "rate_limiter", RateLimiter(self.clock, rate_limits))


@dataclass(frozen=True)
class Validated:
    """The events of a request as Kafka is to have them, and ingestion's verdict on each."""

    records: Sequence[Record]
    verdicts: Sequence[Verdict]

    @property
    def invalid(self) -> list[tuple[int, Verdict]]:
        """Those that are not valid, with their index."""
        return [(index, verdict) for index, verdict in enumerate(self.verdicts) if verdict.reason is not None]

    @property
    def valid(self) -> list[Record]:
        """The records that are."""
        return [record for record, verdict in zip(self.records, self.verdicts, strict=True) if verdict.reason is None]


def authorized(request: Request, services: Services, scope: Scope, *, takes_tokens: bool = False) -> ApiKey:
    """The key that a request carries, or what the token of the identity provider allows, or (`takes_tokens`) a portal
    token.

    Raises Problem: 401 without one that holds, 403 for another scope, 429 where it has sent too many requests.
    """
    if not services.database.is_fresh:
        raise unavailable("The database that holds the API keys does not answer.")
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    key = _bearer(services, text.strip()) if scheme.lower() == "bearer" else None
    if key is None:
        raise _unauthorized("Send a valid API key as `Authorization: Bearer weir_…`; `weir keys create` makes one.")
    if key.made_by is not None and not takes_tokens:
        raise Problem(HTTPStatus.FORBIDDEN, "A portal token reads usage and bills of its account, and nothing else.")
    if key.made_by is None and scope not in key.scopes:
        raise Problem(HTTPStatus.FORBIDDEN, f"The key {key.id} does not have the scope {scope.value}.")
    services.rate_limiter.take_request(key)
    return key


def _bearer(services: Services, text: str) -> ApiKey | None:
    """The key, or what a token of the identity provider allows. Raises Problem (401, 503) for a token."""
    if (key := services.database.key(text)) is not None or services.issuer is None or text.count(".") != 2:
        return key
    try:
        return services.issuer.key(text)
    except BadToken as refused:
        raise _unauthorized(f"The token is refused: {refused}.") from refused


def _unauthorized(detail: str) -> Problem:
    return Problem(HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": 'Bearer realm="weir"'})


async def validated_events(
    request: Request, services: Services, key: ApiKey, reserve: Callable[[int], None]
) -> Validated:
    """Read and validate the events of a request; `reserve` as `read_body` has it.

    Raises Problem: for the body, where the key may not send one or has sent too many, or ingestion is too far behind.
    """
    refuse_lag(services.database.lag_seconds, services.max_lag_seconds, services.database.retention)
    body = await received_body(request, reserve)
    events = events_in(request.headers, body)
    services.rate_limiter.take_events(key, len(events))
    records = [Record(subject_in(event.parsed), with_time(event, services.clock.now())) for event in events]
    verdicts = await verdicts_on(services, [record.value for record in records])
    _refuse_forbidden(key, verdicts)
    return Validated(in_topics(services, records, verdicts), verdicts)


def _refuse_forbidden(key: ApiKey, verdicts: Sequence[Verdict]) -> None:
    """Raises Problem (403), which names each valid event that may not be sent with this key."""
    refused = refusal_by(key)
    reasons = {index: refused(verdict) for index, verdict in enumerate(verdicts) if verdict.reason is None}
    found = [(index, reason) for index, reason in reasons.items() if reason is not None]
    if found:
        invalid = [
            {"field": f"/{index}", "rule": FORBIDDEN, "source": "body", "reason": reason} for index, reason in found
        ]
        index, reason = found[0]
        raise Problem(HTTPStatus.FORBIDDEN, f"Event {index} is refused: {reason}.", invalid=invalid)


async def verdicts_on(services: Services, documents: Sequence[bytes]) -> list[Verdict]:
    """What ingestion would make of each event. Raises Problem (503)."""
    try:
        async with asyncio.timeout(VALIDATION_TIMEOUT_SECONDS):
            return await services.validator.verdicts(documents)
    except TimeoutError:
        raise unavailable("More events come in than can be validated: send the same request again later.") from None
    except IngestionNotStarted:
        raise unavailable("Ingestion has not been started yet, so the contracts in force are not known.") from None


def in_topics(services: Services, records: Sequence[Record], verdicts: Sequence[Verdict]) -> Sequence[Record]:
    """The records, each with the topic that its type belongs to where ingestion reads several. As `topic_for`."""
    if not services.validator.chooses_topics:
        return records
    found = zip(records, verdicts, strict=True)
    return [replace(record, topic=topic_for(services, verdict.type)) for record, verdict in found]


def topic_for(services: Services, event_type: str | None) -> str:
    """The topic that events of a type are written to. Raises Problem (503) while there is none that will be read."""
    try:
        return services.validator.topic_of(event_type)
    except TopicEnds:
        raise unavailable(
            "The topic of this event is being ended, and ingestion has not been started with another yet: send the "
            "same request again later."
        ) from None


async def append(services: Services, records: Sequence[Record]) -> dict[tuple[str, int], int]:
    """Append valid events to their topics, or the first that ingestion reads; gives each partition's last offset.

    Raises Problem.
    """
    return await services.producer.send(services.validator.topics[0], records)


def with_time(event: Element, now: datetime) -> bytes:
    """An event without `time`, or with null, gets the time of its receipt, and is marked so.

    Its digest leaves that time out (`fingerprints`): the same event, sent again after an answer was lost, is a
    duplicate and not a conflict.
    """
    members = event.parsed
    if not isinstance(members, dict) or any(members.get(name) is not None for name in ("time", TIME_SOURCE)):
        return event.document
    filled = {"time": f'"{rfc3339(now)}"', TIME_SOURCE: f'"{RECEIPT}"'}
    text = event.document.decode()
    for name, start, end in reversed(list(members_of(text)) if filled.keys() & members.keys() else []):
        if name in filled:
            # A null is the same as nothing; a second one of its name stays, and is refused.
            text = text[:start] + filled.pop(name) + text[end:]
    opening = text.index("{") + 1
    added = ",".join(f'"{name}":{value}' for name, value in filled.items())
    comma = "," if added and members else ""
    return (text[:opening] + added + comma + text[opening:]).encode()


def refusal_by(key: ApiKey) -> Callable[[Verdict], str | None]:
    """Why a valid event may not be sent with this key: its source or its account. None where it may."""
    pattern = re.compile(glob_expression(key.sources)) if key.sources else None

    def refused(verdict: Verdict) -> str | None:
        if verdict.source == HEARTBEAT_SOURCE:
            return f"the source {HEARTBEAT_SOURCE} is Weir's own"
        if key.accounts and verdict.account not in key.accounts:
            return f"the key {key.id} may not send for its subject"
        if pattern is not None and pattern.match(verdict.source or "") is None:
            return f"the key {key.id} may not send for its source"
        return None

    return refused


async def received_body(request: Request, reserve: Callable[[int], None], max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The body, unpacked; `reserve` as `read_body` has it. Raises Problem."""
    try:
        async with asyncio.timeout(BODY_WITHIN_SECONDS):
            return await read_body(_chunks(request), request.headers.get("content-encoding", ""), reserve, max_bytes)
    except TimeoutError:
        detail = f"The body did not come within {BODY_WITHIN_SECONDS:.0f} s."
        raise Problem(HTTPStatus.REQUEST_TIMEOUT, detail) from None
    except ClientDisconnect:
        raise Problem(HTTPStatus.BAD_REQUEST, "The connection ended within the body.") from None


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        yield chunk
