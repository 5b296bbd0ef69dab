"""Catalog changes as Debezium sends them: the row of `accounts` or `prices` that each becomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from jobs.journal.catalog_fields import (
    Currency,
    FreeText,
    Instant,
    Milliseconds,
    PerhapsUnitPrice,
    Text,
    author_or_none,
    instant_or_none,
    known_position,
    tags_or_none,
    terms_or_none,
)
from jobs.streams import AUTHOR, CatalogTopic
from metering.framing import frame_problem
from metering.instants import EPOCH


class InvalidChangeError(ValueError):
    """The record is not a catalog change that can be applied; the message says why."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class _Changed(_Part):
    """Who changed the row, and when: columns of the database since migration 0029."""

    changed_by: Annotated[str | None, BeforeValidator(author_or_none)] = None
    changed_at: Annotated[datetime | None, BeforeValidator(instant_or_none)] = None


class _Deleted(_Changed):
    """A deleted row, as it last was. If it sets `deleted_at` its author deleted it; else an earlier one changed it."""

    deleted_at: Instant | None = None


class _AccountKey(_Part):
    account: Text


class _DeletedAccount(_AccountKey, _Deleted):
    pass


class _Account(_AccountKey, _Changed):
    name: FreeText | None = None
    plan: Text
    currency: Currency
    timezone: Text | None = None
    effective_from: Instant | None = None
    tags: Annotated[str | None, BeforeValidator(tags_or_none)] = None
    parent: Annotated[str | None, BeforeValidator(author_or_none)] = None


class _Plan(_Part):
    plan: Text


class _PriceKey(_Part):
    plan: Text
    model: Text
    meter: Text
    currency: Currency
    effective_from: Instant | None = None


class _DeletedPrice(_PriceKey, _Deleted):
    pass


class _Price(_PriceKey, _Changed):
    unit_price: PerhapsUnitPrice = None
    terms: Annotated[str | None, BeforeValidator(terms_or_none)] = None

    @model_validator(mode="before")
    @classmethod
    def _has_one_price(cls, row: Any) -> Any:
        """With a unit price there are no terms: a release before them did not read the column."""
        if isinstance(row, dict) and row.get("unit_price") is not None:
            return {name: value for name, value in row.items() if name != "terms"}
        if isinstance(row, dict) and row.get("terms") is None:
            raise ValueError("a price has a unit_price, or terms")
        return row


class _DecisionKey(_Part):
    usage_lsn: Annotated[int, Field(ge=1, le=2**63 - 1)]
    meter: Text


class _Decision(_DecisionKey):
    account: Text
    request_id: Text
    decision: Literal["approve", "reject"]
    reason: Text
    decided_by: Text


class _Source(_Part):
    ts_ms: Milliseconds | None = None
    lsn: Annotated[int | None, BeforeValidator(known_position)] = None
    ts_us: Annotated[int | None, BeforeValidator(known_position)] = None

    def columns(self) -> dict[str, Any]:
        """`source_lsn` and `source_at`; nothing where either is not known."""
        if self.lsn is None or self.ts_us is None:
            return {}
        return {"source_lsn": self.lsn, "source_at": EPOCH + timedelta(microseconds=self.ts_us)}


class _Envelope(_Part):
    """Debezium's envelope without schemas."""

    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    op: Literal["c", "u", "d", "r"]
    ts_ms: Milliseconds | None = None
    source: _Source | None = None

    def committed_at(self) -> datetime:
        """When the change was committed, or else seen."""
        moment = self.ts_ms if self.source is None or self.source.ts_ms is None else self.source.ts_ms
        if moment is None:
            raise InvalidChangeError("neither source.ts_ms nor ts_ms says when the change was made")
        return EPOCH + timedelta(milliseconds=moment)


_STATES: dict[str, tuple[type[_Part], type[_Part]]] = {
    CatalogTopic.ACCOUNTS: (_Account, _DeletedAccount),
    CatalogTopic.PLANS: (_Plan, _Plan),
    CatalogTopic.PRICES: (_Price, _DeletedPrice),
    CatalogTopic.DECISIONS: (_Decision, _DecisionKey),
}
"""Per topic: what `after` must hold, and what `before` of a deletion must."""


def parse_change(topic: str, value: bytes | None, lsn: int) -> dict[str, Any] | None:
    """The row of `ACCOUNTS` or `PRICES` that a change becomes; None for a tombstone and for a plan.

    Without an `effective_from` the version applies from when the row was changed, which the row records since change
    capture (a snapshot publishes it again), or else from the change's commit. A deletion ends at `deleted_at`, or else
    at its commit: a price has that as `ends_at`, an account as `effective_from` of its last version. Author and time
    are null if they are not published, and for a deletion without `deleted_at`. A decision has its own fields, with
    `lsn` and whether its row was deleted. Raises InvalidChangeError.
    """
    if value is None:
        return None
    try:
        envelope = _Envelope.model_validate(json_object(value, "the value"))
        deleted = envelope.op == "d"
        state = _STATES[topic][deleted].model_validate(envelope.before if deleted else envelope.after)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidChangeError(f"{'.'.join(map(str, first['loc'])) or 'record'}: {first['msg']}") from error
    committed_at = envelope.committed_at()
    if topic == CatalogTopic.PLANS:
        return None
    row = {**state.model_dump(), "lsn": lsn, "deleted": deleted}
    if topic == CatalogTopic.DECISIONS:
        return row
    source = (envelope.source or _Source()).columns()
    if isinstance(state, _Deleted):
        given_at = row.pop("deleted_at")
        if given_at is None:
            row |= dict.fromkeys(AUTHOR)
        if topic == CatalogTopic.PRICES:
            row["ends_at"] = given_at or source.get("source_at") or committed_at
        else:
            row["effective_from"] = given_at
    made_at = row.get("changed_at") or committed_at
    row |= {"committed_at": made_at} if topic == CatalogTopic.ACCOUNTS else {}
    return {**row, "effective_from": row.get("effective_from") or made_at, **source}


def json_object(
    document: bytes, what: str, made_of: Callable[[list[tuple[str, Any]]], dict[str, Any]] = dict
) -> dict[str, Any]:
    """The JSON object in a document, its numbers as Decimal. Raises InvalidChangeError."""
    try:
        parsed = json.loads(
            document.decode(), parse_float=Decimal, parse_constant=_no_number, object_pairs_hook=made_of
        )
    except InvalidChangeError:
        raise
    except (ValueError, InvalidOperation, RecursionError) as error:
        framed = frame_problem(document)
        raise InvalidChangeError(f"{what} is no JSON document" + (f": {framed}" if framed else "")) from error
    if not isinstance(parsed, dict):
        raise InvalidChangeError(f"{what} is no JSON object")
    return parsed


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
