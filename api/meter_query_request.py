"""OpenMeter's query of a meter, read from a query string or a body."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Any
from zoneinfo import ZoneInfo

from starlette.datastructures import QueryParams
from starlette.requests import Request

from api.events import received_body
from api.parameters import MAX_ACCOUNTS, Parameters, allowed_accounts, bad_request, choice_of, instant_of, zone_of
from api.problems import Problem
from api.read_request import ReadRequest
from jobs.queries.pages import Page
from jobs.queries.periods import UTC_ZONE, Window
from jobs.queries.usage import UsageQuery
from jobs.queries.usage_keys import Key
from metering.period_meters import Period

MAX_ROWS = 10_000
"""Of an answer, which has no pages."""
MAX_BODY_BYTES = 64 << 10
SUBJECT = "subject"
ADVANCED = "advancedMeterGroupByFilters"
MEMBERS = ("from", "to", "windowSize", "windowTimeZone", SUBJECT, "groupBy", "filterGroupBy", "clientId", ADVANCED)
_FILTER = re.compile(r"filterGroupBy\[([^\]]+)\]")


class WindowSize(StrEnum):
    """OpenMeter's names of windows."""

    MINUTE = "MINUTE"
    HOUR = "HOUR"
    DAY = "DAY"
    MONTH = "MONTH"


WINDOWS = dict(zip(WindowSize, Window, strict=True))
SIZE_OF_PERIOD = {Period.DAY: WindowSize.DAY, Period.MONTH: WindowSize.MONTH}
"""The shortest windows of a meter that bills whole periods."""
_BY_LENGTH = list(WindowSize)


@dataclass(frozen=True)
class MeterQueryRequest:
    """One query of a meter. `groups` are `subject`, `model` or dimensions; `window_size` None: one total."""

    start: datetime | None = None
    end: datetime | None = None
    window_size: WindowSize | None = None
    zone: ZoneInfo | None = None
    """None: UTC; of what is kept by the days of accounts, each account's own."""
    subjects: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    filters: Mapping[str, tuple[str, ...]] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    """What members are called where it is not the name of v1."""

    def name(self, member: str) -> str:
        """What the client calls a member."""
        return self.names.get(member, member)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Those that are grouped or filtered by, besides what all usage has."""
        named = dict.fromkeys((*self.groups, *(self.filters or {})))
        return tuple(name for name in named if name not in (SUBJECT, *Key))

    def usage_query(self, slug: str, period: str | None) -> UsageQuery:
        """The windows that answer it. Raises Problem (400) for dimensions of what is shorter than a day.

        `period`: that of a meter which bills whole days or months. Raises Problem (400) for windows that are shorter.
        """
        keys = tuple(key for name, key in ((SUBJECT, Key.ACCOUNT), (Key.MODEL.value, Key.MODEL)) if name in self.groups)
        if self.dimensions and self.window_size in (WindowSize.MINUTE, WindowSize.HOUR):
            raise bad_request(self.name("windowSize"), f"{', '.join(self.dimensions)}: only days and months have it.")
        shortest = WindowSize.MINUTE if period is None else SIZE_OF_PERIOD[Period(period)]
        if self.window_size is not None and _BY_LENGTH.index(self.window_size) < _BY_LENGTH.index(shortest):
            name = self.name("windowSize")
            raise bad_request(name, f"{slug} bills each {period} as a whole, so it has no shorter windows.")
        if self.window_size is not None:
            window = WINDOWS[self.window_size]
        else:
            window = WINDOWS[max(shortest, WindowSize.DAY, key=_BY_LENGTH.index) if self.dimensions else shortest]
        return UsageQuery(
            self.start,
            self.end,
            window,
            keys,
            tuple(name for name in self.groups if name not in (SUBJECT, *Key)),
            self.subjects,
            self.zone or UTC_ZONE,
            page=Page(MAX_ROWS + 1),
            filters={Key.METER.value: (slug,), **(self.filters or {})},
            own_calendars=period is not None,
        )


async def query_request_of(read_request: ReadRequest) -> MeterQueryRequest:
    """The query of a meter. Raises Problem."""
    given = (
        _in_query(read_request.request)
        if read_request.request.method == "GET"
        else await body_of(read_request.request, MEMBERS)
    )
    return query_request_in(given, read_request, "query" if read_request.request.method == "GET" else "body", {})


def _in_query(request: Request) -> dict[str, Any]:
    """The members that a body would have. Raises Problem."""
    given, filters = request.query_params, {}
    for name in set(given):
        if (named := _FILTER.fullmatch(name)) is not None:
            filters[named[1]] = given.getlist(name)
    if "filterGroupBy" in given:
        # OpenMeter's Python SDK sends all groups as one text, in which none could be told from another.
        advice = f"Name the group, as in filterGroupBy[model]=gpt-4o, or send {ADVANCED}."
        raise bad_request("filterGroupBy", advice)
    others = [(name, value) for name, value in given.multi_items() if _FILTER.fullmatch(name) is None]
    rest = Parameters.of(QueryParams(others), MEMBERS)
    single = {name: rest.text(name) for name in ("from", "to", "windowSize", "windowTimeZone", ADVANCED)}
    groups = [part for text in rest.texts("groupBy") for part in text.split(",")]
    return {**single, "groupBy": groups, SUBJECT: list(rest.texts(SUBJECT)), "filterGroupBy": filters}


async def body_of(request: Request, members: Collection[str]) -> dict[str, Any]:
    """The JSON object of a body, with some of these members; the query string has none of them. Raises Problem."""
    Parameters.of(request.query_params, ())
    body = await received_body(request, lambda _: None, MAX_BODY_BYTES)
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise Problem(HTTPStatus.BAD_REQUEST, "Send a JSON object; {} has no member.")
    if unknown := sorted(set(given) - set(members)):
        raise bad_request(f"/{unknown[0]}", f"There is no such member; there are {', '.join(members)}.", "body")
    return given


def query_request_in(
    given: Mapping[str, Any], read_request: ReadRequest, source: str, names: Mapping[str, str]
) -> MeterQueryRequest:
    """The members of v1, which may have other `names` where they come from. Raises Problem."""

    def text(name: str) -> str | None:
        value = given.get(name)
        if value is not None and not isinstance(value, str):
            raise bad_request(names.get(name, name), "It must be a text.", source)
        return value or None

    def instant(name: str) -> datetime | None:
        value = text(name)
        return None if value is None else instant_of(name, value)

    start, end = instant("from"), instant("to")
    if start is not None and end is not None and end <= start:
        raise bad_request("to", "It must be after `from`.", source)
    size, zone = text("windowSize"), text("windowTimeZone")
    window_size = None if size is None else choice_of("windowSize", size, WindowSize)
    if window_size is None and any(at is not None and (at.second or at.microsecond) for at in (start, end)):
        raise bad_request("from", "from and to must be whole minutes.", source)
    # No subjects are all of them; an empty one would be, too, where somebody's variable was empty.
    wanted = given.get(SUBJECT)
    named = () if wanted is None or wanted == [] else values_of(wanted, names.get(SUBJECT, SUBJECT), source)
    subjects = allowed_accounts(read_request.key, named, SUBJECT)
    groups = tuple(dict.fromkeys([*_texts(given, "groupBy", source, names), *([SUBJECT] if subjects else [])]))
    if unknown := [name for name in groups if name in (Key.ACCOUNT, Key.METER)]:
        raise bad_request(
            names.get("groupBy", "groupBy"),
            f"{unknown[0]}: the account is `subject`, and the meter is in the path.",
            source,
        )
    return MeterQueryRequest(
        start,
        end,
        window_size,
        None if zone is None else zone_of(names.get("windowTimeZone", "windowTimeZone"), zone),
        subjects,
        groups,
        _filters(given, source, names),
        names,
    )


def _filters(given: Mapping[str, Any], source: str, names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Values by group: `filterGroupBy`, and of `advancedMeterGroupByFilters` what is `{"$eq": …}` or `{"$in": […]}`."""
    found: dict[str, tuple[str, ...]] = {}
    called = names.get("filterGroupBy", "filterGroupBy")
    for name, value in object_of(given.get("filterGroupBy"), called, source).items():
        found[name] = values_of(value, f"{called}[{name}]", source)
    advanced = given.get(ADVANCED)
    if isinstance(advanced, str):
        try:
            advanced = json.loads(advanced)
        except (ValueError, RecursionError):
            raise bad_request(ADVANCED, "It must be a JSON object.", source) from None
    for name, value in object_of(advanced, ADVANCED, source).items():
        operators = object_of(value, ADVANCED, source)
        if len(operators) != 1 or not operators.keys() <= {"$eq", "$in"}:
            raise bad_request(ADVANCED, f"{name}: only $eq and $in are supported.", source)
        (wanted,) = operators.values()
        if name in found:
            raise bad_request(ADVANCED, f"{name}: filter it once, here or by {called}.", source)
        found[name] = values_of(wanted, f"{ADVANCED}: {name}", source)
    if unknown := [name for name in found if name in (SUBJECT, Key.ACCOUNT, Key.METER)]:
        raise bad_request(called, f"{unknown[0]}: filter accounts by `subject`.", source)
    return found


def object_of(value: Any, name: str, source: str) -> Mapping[str, Any]:
    """A member that is an object; null is an empty one. Raises Problem."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(name, "It must be an object.", source)
    return value


def _texts(given: Mapping[str, Any], name: str, source: str, names: Mapping[str, str]) -> list[str]:
    value = given.get(name)
    return [] if value is None else texts_of(value, names.get(name, name), source)


def values_of(value: Any, name: str, source: str) -> tuple[str, ...]:
    """What is filtered by, each once. Raises Problem (400): a filter by nothing would show nothing, or everything."""
    values = value if isinstance(value, list) else [value]
    found = texts_of(value, name, source)
    if not found or len(found) < len(values):
        raise bad_request(name, "It must have a value, and no empty one.", source)
    return tuple(dict.fromkeys(found))


def texts_of(value: Any, name: str, source: str) -> list[str]:
    """A text, or a list of texts, without empty ones. Raises Problem (400)."""
    values = value if isinstance(value, list) else [value]
    if len(values) > MAX_ACCOUNTS or not all(isinstance(value, str) and "\0" not in value for value in values):
        raise bad_request(name, f"It must be a list of at most {MAX_ACCOUNTS} texts.", source)
    return [value for value in values if value]
