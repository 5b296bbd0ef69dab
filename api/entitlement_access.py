"""OpenMeter's question of a gateway: may these customers use these features? `POST …/entitlement-access/query`.

A customer is an account. A feature is a meter (`METER`), a meter of one model (`METER/MODEL`), of one value of a
dimension (`METER?NAME=VALUE`, with the value as in a URL), or of both (`METER?NAME=VALUE/MODEL`). Weir answers by the
limits of the catalog; the gateway enforces them. It keeps no credits, so `include_credits` changes nothing: refused, a
gateway that lets calls pass on errors would let all of them pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

from starlette.responses import Response

from api.answers import tagged, to_json
from api.meter_query_request import body_of, object_of, texts_of
from api.parameters import bad_request
from api.read_request import ReadRequest
from jobs.billing.days import MAX_COMBINATIONS
from jobs.billing_progress import Row
from jobs.queries.limits import LimitUse, accounts_now, dimensions_of_limits, limits_in_use
from jobs.queries.reading import Database
from metering.csv_lines import text_of
from metering.limits import period_words, rolling_hours

MEMBERS = ("customer", "feature", "include_credits")
CUSTOMER_NOT_FOUND = "customer_not_found"
_METERS = "SELECT meter FROM meters ORDER BY meter"


class Denied(StrEnum):
    """Why there is no access: OpenMeter's codes, but for the one about credits, which Weir does not keep."""

    UNKNOWN = "unknown"
    USAGE_LIMIT_REACHED = "usage_limit_reached"
    FEATURE_UNAVAILABLE = "feature_unavailable"
    FEATURE_NOT_FOUND = "feature_not_found"


@dataclass(frozen=True)
class _Feature:
    meter: str
    model: str
    dimension: str
    value: str

    def counts_under(self, limit: LimitUse) -> bool:
        """One of money is of every feature, as all of them cost, or of its meter. One of all models is of each, and so
        one of all usage.
        """
        if limit.currency:
            return limit.meter in ("", self.meter)
        of_value = (limit.dimension, limit.dimension_value) in (("", ""), (self.dimension, self.value))
        return limit.meter == self.meter and limit.model in ("", self.model) and of_value


@dataclass(frozen=True)
class _Found:
    meters: Sequence[str]
    dimensions: Collection[str]
    accounts: Mapping[str, Row]
    limits: Mapping[tuple[str, str], Sequence[LimitUse]]


async def entitlement_access(read_request: ReadRequest) -> Response:
    """`data`: of each account its access to each meter. `errors`: the accounts that there are not, or not for this key.

    `updated_at`: everything that was received before it counts.
    """
    customers, features = await _asked(read_request)

    def question(database: Database) -> _Found:
        meters = [row["meter"] for row in database.execute(_METERS).fetchall()]
        accounts = {row["account"]: row for row in accounts_now(database, customers)}
        limits: dict[tuple[str, str], list[LimitUse]] = {}
        if accounts:
            now = next(iter(accounts.values()))["read_at"]
            parts = [(feature, _parts(feature)) for feature in features or meters]
            asked_meters = [part.meter for _, part in parts]
            values = {(part.dimension, part.value) for _, part in parts}
            for limit in limits_in_use(database, list(accounts), asked_meters, now, values=values):
                for feature, part in parts:
                    if part.counts_under(limit):
                        limits.setdefault((limit.account, feature), []).append(limit)
        dimensions = dimensions_of_limits(database) if any("?" in feature for feature in features) else set()
        return _Found(meters, dimensions, accounts, limits)

    found, frontier = await read_request.of(question)
    named = [name for name in customers if name in found.accounts]
    unknown = [name for name in customers if name not in found.accounts]
    document = {
        "data": [_result(found, name, features or found.meters, frontier) for name in named],
        "errors": [
            {"code": CUSTOMER_NOT_FOUND, "customer": name, "message": f"There is no account {name} for this key."}
            for name in unknown
        ],
        "meta": {"page": {"size": len(named), "next": None, "previous": None}},
    }
    return tagged(read_request.request, to_json(document), frontier, document)


async def _asked(read_request: ReadRequest) -> tuple[list[str], list[str]]:
    """The customers, and the features; none: all. Raises Problem (400)."""
    given = await body_of(read_request.request, MEMBERS)
    if not isinstance(given.get("include_credits"), bool | None):
        raise bad_request("include_credits", "It must be true or false.", "body")
    customers = _keys(given, "customer")
    if not customers:
        raise bad_request("customer.keys", "It must name a customer.", "body")
    return customers, _keys(given, "feature")


def _parts(feature: str) -> _Feature:
    """Its parts; what it does not name is empty. One of several dimensions is all meter, so there is none.

    No meter has a slash or a question mark, and a model may. The key of a tag, as in `account.tags.cost/center`, may
    have a slash, and no name has an equals sign.
    """
    meter, _, of_value = feature.partition("?")
    dimension, equals, rest = of_value.partition("=")
    if "/" in meter or not (dimension and equals):
        of, _, model = feature.partition("/")
        return _Feature(of, model, "", "")
    value, _, model = rest.partition("/")
    if "&" in value:
        return _Feature(feature, "", "", "")
    return _Feature(meter, model, unquote(dimension), unquote(value))


def _keys(given: Mapping[str, Any], name: str) -> list[str]:
    members = object_of(given.get(name), name, "body")
    if unknown := sorted(members.keys() - {"keys"}):
        raise bad_request(f"{name}.{unknown[0]}", "There is no such member; there is keys.", "body")
    keys = members.get("keys")
    if keys is None:
        return []
    # An empty one is no request for all: it is the name of nothing.
    empty = [""] if "" in (keys if isinstance(keys, list) else [keys]) else []
    return [*dict.fromkeys(texts_of(keys, f"{name}.keys", "body")), *empty]


def _result(found: _Found, name: str, features: Iterable[str], frontier: datetime | None) -> dict[str, Any]:
    account = found.accounts[name]
    customer = {
        "id": name,
        "key": name,
        "name": account["name"],
        "created_at": account["effective_from"],
        "updated_at": account["changed_at"],
    }
    access = {feature: _access(found, name, feature, frontier) for feature in features}
    # OpenMeter's clients need an instant; before billing ever ran there is only that of the account.
    return {
        "matched": [name],
        "customer": customer,
        "features": access,
        "updated_at": frontier or account["changed_at"],
    }


def _access(found: _Found, name: str, feature: str, frontier: datetime | None) -> dict[str, Any]:
    if missing := _missing(found, feature):
        return _denied(Denied.FEATURE_NOT_FOUND, missing)
    limits = [limit for limit in found.limits.get((name, feature), ()) if limit.maximum is not None]
    for limit in limits:
        if limit.maximum == 0:
            return _denied(Denied.FEATURE_UNAVAILABLE, f"The limit of {_name(limit)} is 0.")
    if limits and frontier is None:
        return _denied(Denied.UNKNOWN, "Billing has not started, so it is not known how much was used.")
    for limit in limits:
        if limit.maximum is not None and limit.used >= limit.maximum:
            which, verb = "the" if rolling_hours(limit.period) else "this", "spent" if limit.currency else "used"
            used = f"{text_of(limit.used)} of {text_of(limit.maximum)} {_name(limit)} are {verb}"
            return _denied(Denied.USAGE_LIMIT_REACHED, f"{used} in {which} {period_words(limit.period)}.")
    if uncertain := [_more(limit) for limit in limits if limit.other]:
        return {"has_access": True, "may_be_more": uncertain}
    return {"has_access": True}


def _missing(found: _Found, feature: str) -> str | None:
    """Why there is no such feature; None: there is. Whoever misspells it must not be let through whatever is used."""
    part = _parts(feature)
    if part.meter not in found.meters:
        return f"There is no meter {part.meter}."
    if part.dimension and part.dimension not in found.dimensions:
        return f"There is no dimension {part.dimension}."
    return None


def _more(limit: LimitUse) -> str:
    """Of a day with too many combinations of dimensions it is not known whose the rest is."""
    return (
        f"{text_of(limit.used)} {_name(limit)} are used in this {period_words(limit.period)}, and up to "
        f"{text_of(limit.other)} more: usage of combinations beyond the first {MAX_COMBINATIONS:,} of a day is in no "
        "value of a dimension."
    )


def _name(limit: LimitUse) -> str:
    of_model = f" of {limit.model}" if limit.model else ""
    of_value = f" of {limit.dimension} {limit.dimension_value}" if limit.dimension else ""
    what = f"{limit.currency} of {limit.meter}" if limit.currency and limit.meter else limit.meter or limit.currency
    return f"{what}{of_model}{of_value}"


def _denied(code: Denied, message: str) -> dict[str, Any]:
    return {"has_access": False, "reason": {"code": code.value, "message": message}}
