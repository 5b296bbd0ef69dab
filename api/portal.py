"""Portal tokens over HTTP: a customer's browser reads its own usage with one, and never sees a key.

`POST /api/v1/portal/tokens` makes one, as OpenMeter's does; `GET /api/v1/portal/meters/{slug}/query` is read with it,
and `POST /api/v1/portal/tokens/invalidate` ends it before its time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api.answers import JSON, to_json
from api.events import Services, authorized
from api.meter_query import meter_query
from api.meter_query_request import body_of
from api.parameters import allowed_accounts, bad_request, instant_of, name_in
from api.problems import Problem
from api.read_request import ReadRequest
from jobs.queries.portal_invalidations import TooManyInvalidations, generation_of, invalidate
from metering.api_keys import Scope
from metering.portal_tokens import PortalToken, token_of

MEMBERS = ("subject", "allowedMeterSlugs", "expiresAt")
MEMBERS_OF_INVALIDATE = ("id", "subject")
DEFAULT_LIFETIME, MAX_LIFETIME = timedelta(hours=1), timedelta(days=1)
MAX_METERS = 50


async def make_token(request: Request, services: Services) -> Response:
    """OpenMeter's answer: `id, subject, expiresAt, expired, createdAt, allowedMeterSlugs`, and `token`, shown once.

    Raises Problem: 403 for an account that the key does not name.
    """
    key = authorized(request, services, Scope.PORTAL)
    given = await body_of(request, MEMBERS)
    account = name_in(given.get("subject"), "subject")
    allowed_accounts(key, (account,), "subject")
    now = services.clock.now()
    expires_at, meters = _expiry(given.get("expiresAt"), now), _meters(given.get("allowedMeterSlugs"))
    assert services.reader is not None, "routes are made where there is one"
    generation = await services.reader.run(key, lambda database: generation_of(database, account))
    token = PortalToken(key.id, account, expires_at, meters, generation)
    if token_of(text := token.text(key)) is None:
        raise bad_request("allowedMeterSlugs", "The token would be too long: name fewer meters.", "body")
    shown = {
        "id": token.id,
        "subject": token.account,
        "createdAt": now,
        "expiresAt": token.expires_at,
        "expired": False,
        **({"allowedMeterSlugs": token.meters} if token.meters else {}),
        "token": text,
    }
    return Response(to_json(shown), headers={"Cache-Control": "no-store"}, media_type=JSON)


async def invalidate_tokens(request: Request, services: Services) -> Response:
    """End a token by its `id`, or all tokens of a `subject` that were made so far, by whichever key; 204.

    Raises Problem: 403 for an account that the key does not name.
    """
    key = authorized(request, services, Scope.PORTAL)
    given = {
        name: value for name, value in (await body_of(request, MEMBERS_OF_INVALIDATE)).items() if value is not None
    }
    if len(given) != 1:
        raise Problem(
            HTTPStatus.BAD_REQUEST, "Send the `id` of a token, or the `subject` whose tokens end: one of them."
        )
    [(field, value)] = given.items()
    name = name_in(value, field)
    if field == "subject":
        allowed_accounts(key, (name,), "subject")
    which = {"account" if field == "subject" else "token_id": name}
    assert services.reader is not None, "routes are made where there is one"
    try:
        await services.reader.run(key, lambda database: invalidate(database, key.id, **which), writes=True)
    except TooManyInvalidations:
        detail = f"Too many were invalidated within a day: revoke the key that made them (weir keys revoke {key.id})."
        raise Problem(HTTPStatus.CONFLICT, detail) from None
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def portal_query(read_request: ReadRequest) -> Response:
    """As a meter's query, of a meter that the token may read. Raises Problem: 403 for another one."""
    key, slug = read_request.key, read_request.request.path_params["slug"]
    if key.meters and slug not in key.meters:
        raise Problem(HTTPStatus.FORBIDDEN, f"This token may not read the meter {slug!r}.")
    return await meter_query(read_request)


def _expiry(given: Any, now: datetime) -> datetime:
    """A whole second after now, at most MAX_LIFETIME."""
    if given is None:
        expires_at = now + DEFAULT_LIFETIME
    elif isinstance(given, str):
        expires_at = instant_of("expiresAt", given)
    else:
        raise bad_request("expiresAt", "It must be a text.", "body")
    expires_at = expires_at.astimezone(UTC).replace(microsecond=0)
    if not now < expires_at <= now + MAX_LIFETIME:
        raise bad_request("expiresAt", "It must be within the next 24 hours.", "body")
    return expires_at


def _meters(given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not 0 < len(given) <= MAX_METERS:
        raise bad_request("allowedMeterSlugs", f"It must be a list of 1 to {MAX_METERS} meters.", "body")
    return tuple(dict.fromkeys(name_in(slug, "allowedMeterSlugs") for slug in given))
