"""Why an endpoint is not added, found or changed."""

from __future__ import annotations

from deployment.errors import CannotRun


class NoEndpoint(CannotRun):
    """No endpoint has this name."""


class NoDelivery(CannotRun):
    """A delivery of this number was not for this endpoint."""


class SignsNothing(CannotRun):
    """The endpoint is of a kind whose calls are not signed, so it has no secret that is rotated."""


class IsDisabled(CannotRun):
    """The endpoint is disabled already."""


class TooManyEndpoints(CannotRun):
    """The accounts have as many endpoints as they may."""


class TooManySecrets(CannotRun):
    """So many secrets of the endpoint sign already that there may be no further one."""


class HasSecretUrl(CannotRun):
    """The URL of an endpoint of Slack is its secret, so it is not changed."""


def no_endpoint(endpoint: str) -> NoEndpoint:
    """The error of a name that no endpoint has."""
    return NoEndpoint(f"There is no endpoint {endpoint}: `weir webhooks list` shows all.")
