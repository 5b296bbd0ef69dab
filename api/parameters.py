"""The parameters of a read request, checked: an unknown or malformed one is refused with what to do."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from http import HTTPStatus
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from starlette.datastructures import QueryParams

from api.problems import Problem
from metering.api_keys import ApiKey
from metering.csv_lines import text_of
from metering.texts import encodable
from metering.view_durations import minutes_of

AFTER, WAIT = "after", "wait"
"""Parameters of every read request."""
MAX_ROWS, DEFAULT_ROWS = 1_000, 100
"""Of a page."""
MAX_ACCOUNTS = 100
MAX_CURSOR_CHARACTERS = 32_768
"""A view has six keys of up to 512 bytes, and JSON writes a byte as up to six characters."""
MAX_NAME_CHARACTERS = 200
"""Of a name in the body of a request."""
FIRST_YEAR, END_YEAR = 1970, 9999

E = TypeVar("E", bound=StrEnum)


class Flag(StrEnum):
    """The values of a flag."""

    TRUE = "true"
    FALSE = "false"


@dataclass(frozen=True)
class Parameters:
    """A query string, read by name. Each method raises Problem (400) for a value that it cannot read."""

    given: QueryParams

    @classmethod
    def of(cls, given: QueryParams, known: Collection[str]) -> Parameters:
        """The parameters. Raises Problem for one that is not known: ignored, it would change what is answered."""
        names = {*known, AFTER, WAIT}
        if unknown := sorted(set(given) - names):
            raise bad_request(unknown[0], f"There is no such parameter; there are {', '.join(sorted(names))}.")
        return cls(given)

    def text(self, name: str) -> str | None:
        """The one value; None where it is not given, or empty."""
        values = self.given.getlist(name)
        if len(values) > 1:
            raise bad_request(name, "Give it once.")
        return values[0] or None if values else None

    def texts(self, name: str) -> tuple[str, ...]:
        """All values, each once."""
        return tuple(dict.fromkeys(self.given.getlist(name)))

    def accounts(self, key: ApiKey, name: str = "account") -> tuple[str, ...]:
        """The accounts that are asked for; none: all that the key may read. Raises Problem (403) for another one."""
        return allowed_accounts(key, self.texts(name), name)

    def instant(self, name: str) -> datetime | None:
        """An RFC 3339 instant, in UTC."""
        text = self.text(name)
        return None if text is None else instant_of(name, text)

    def range(self) -> tuple[datetime | None, datetime | None]:
        """`from` and `to`."""
        start, end = self.instant("from"), self.instant("to")
        if start is not None and end is not None and end < start:
            raise bad_request("to", "It is before `from`.")
        return start, end

    def choice(self, name: str, kind: type[E], default: E | None = None) -> E | None:
        """One of a closed set."""
        text = self.text(name)
        return default if text is None else choice_of(name, text, kind)

    def flag(self, name: str) -> bool:
        """`true` or `false`, which it is by default."""
        return self.choice(name, Flag) is Flag.TRUE

    def duration(self, name: str) -> timedelta | None:
        """An ISO 8601 duration of whole minutes, up to a day."""
        text = self.text(name)
        try:
            return None if text is None else minutes_of(text)
        except ValueError as error:
            raise bad_request(name, f"{error}.") from None

    def number(self, name: str, lowest: int, highest: int, default: int) -> int:
        """A whole number within bounds."""
        text = self.text(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and lowest <= int(text) <= highest):
            raise bad_request(name, f"It must be a whole number from {lowest} to {highest}.")
        return int(text)

    def limit(self) -> int:
        """How many rows a page has at most."""
        return self.number("limit", 1, MAX_ROWS, DEFAULT_ROWS)

    def zone(self, name: str) -> ZoneInfo | None:
        """A time zone by its IANA name."""
        text = self.text(name)
        return None if text is None else zone_of(name, text)

    def cursor(self, length: int) -> tuple[Any, ...]:
        """The key of the last row of the page before; empty for the first page. `length`: of its values."""
        text = self.text("cursor")
        if text is None:
            return ()
        try:
            values = json.loads(base64.urlsafe_b64decode(text[:MAX_CURSOR_CHARACTERS].encode("ascii")))
        except (binascii.Error, ValueError, RecursionError):
            values = None
        is_key = isinstance(values, list) and len(values) == length
        if not is_key or not all(value is None or isinstance(value, str) for value in values):
            raise bad_request("cursor", "It is not a cursor of this query: pass `next` of the previous page unchanged.")
        return tuple(values)


def cursor_of(key: Iterable[Any]) -> str:
    """What `Parameters.cursor` reads: texts, which Postgres takes for any type, and nulls."""
    # As UTF-8: escaped, it would be up to three times as long, and proxies bound the length of a URL.
    written = json.dumps([None if value is None else text_of(value) for value in key], ensure_ascii=False)
    return base64.urlsafe_b64encode(written.encode()).decode()


def allowed_accounts(key: ApiKey, accounts: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The same accounts. Raises Problem: 403 for one that the key may not read, 400 for too many."""
    if len(accounts) > MAX_ACCOUNTS:
        raise bad_request(name, f"At most {MAX_ACCOUNTS} at once.")
    if key.accounts and (others := [account for account in accounts if account not in key.accounts]):
        raise Problem(HTTPStatus.FORBIDDEN, f"The key {key.id} may not read the account {others[0]}.")
    if any("\0" in account for account in accounts):
        raise bad_request(name, "It has a NUL character.")
    return accounts


def name_in(given: Any, field: str) -> str:
    """The text that a body has as this field. Raises Problem (400) for anything else, and for one that is too long."""
    if not isinstance(given, str) or not 0 < len(given) <= MAX_NAME_CHARACTERS or encodable(given) != given:
        raise bad_request(field, f"It must be a text of 1 to {MAX_NAME_CHARACTERS} characters.", "body")
    return given


def instant_of(name: str, text: str) -> datetime:
    """An RFC 3339 instant, in UTC. Raises Problem (400): without an offset it could mean any zone."""
    try:
        value = datetime.fromisoformat(text)
        if value.tzinfo is None or not FIRST_YEAR < value.year < END_YEAR:
            raise ValueError
    except ValueError:
        raise bad_request(name, "It must be an instant with an offset, such as 2026-01-31T10:00:00Z.") from None
    return value.astimezone(UTC)


def choice_of(name: str, text: str, kind: type[E]) -> E:
    """One of a closed set. Raises Problem (400)."""
    try:
        return kind(text)
    except ValueError:
        raise bad_request(name, f"It must be one of {', '.join(kind)}.") from None


def zone_of(name: str, text: str) -> ZoneInfo:
    """A time zone by its IANA name. Raises Problem (400)."""
    try:
        return ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise bad_request(name, "It must be a time zone such as UTC or Europe/Berlin.") from None


def bad_request(field: str, reason: str, source: str = "query") -> Problem:
    """400, which names the parameter."""
    invalid = [{"field": field, "rule": "invalid", "source": source, "reason": reason}]
    return Problem(HTTPStatus.BAD_REQUEST, f"{field}: {reason}", invalid=invalid)
