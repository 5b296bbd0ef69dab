"""Sign-in by OpenID Connect: who may look at the dashboard, and which accounts a claim lets that viewer see."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from dashboard.scope import Scope
from metering.account_claims import accounts_of

CLOCK_SECONDS = 120
"""So far the provider's clock may be ahead of this one, as Authlib has it."""
SECONDS_PER_HOUR = 3_600


class NotSignedIn(Exception):
    """Nobody has signed in, or that was too long ago; the sentence says which."""


class SeesNothing(Exception):
    """The viewer's claim names no account that this dashboard shows."""


class SignIn(BaseModel):
    """How viewers sign in. Without `metadata_url` there is no sign-in."""

    model_config = ConfigDict(frozen=True)

    metadata_url: str = Field(
        description="WEIR_OIDC_METADATA_URL: Where the identity provider describes itself, as "
        "https://login.example.com/.well-known/openid-configuration. With it every viewer signs in."
    )
    client_id: str = Field(description="WEIR_OIDC_CLIENT_ID: What the provider calls the dashboard.")
    client_secret: SecretStr = Field(description="WEIR_OIDC_CLIENT_SECRET: The dashboard's secret there.")
    redirect_uri: str = Field(
        description="WEIR_OIDC_REDIRECT_URI: The dashboard's address, with oauth2callback as its last part: the "
        "provider must know it."
    )
    cookie_secret: SecretStr = Field(
        description="WEIR_OIDC_COOKIE_SECRET: Signs the cookies of viewers; the same for all pods of a release."
    )
    scope: str = Field(
        default="openid email profile",
        description="WEIR_OIDC_SCOPE: What the provider is asked for. Default: openid email profile.",
    )
    accounts_claim: str = Field(
        default="weir_accounts",
        description="WEIR_OIDC_ACCOUNTS_CLAIM: The claim of the ID token with the accounts that its viewer sees: a "
        "list, or * for all. Default: weir_accounts.",
    )
    hours: float = Field(
        default=12, gt=0, description="WEIR_OIDC_HOURS: After how many hours a viewer signs in again. Default: 12."
    )

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> SignIn | None:
        """That of an environment; None without WEIR_OIDC_METADATA_URL. Raises ValueError for one that is not whole."""
        given = {
            name: value for name, field in cls.model_fields.items() if (value := environment.get(_variable(field)))
        }
        if not given:
            return None
        lacking = [
            _variable(field) for name, field in cls.model_fields.items() if field.is_required() and name not in given
        ]
        if lacking:
            raise ValueError(
                f"Sign-in is configured in part: set {', '.join(lacking)} too, or unset all of WEIR_OIDC_*."
            )
        return cls.model_validate(given)

    def streamlit_secrets(self) -> dict[str, Any]:
        """What `st.login` needs, as `st.App` takes it. No file has it."""
        return {
            "auth": {
                "redirect_uri": self.redirect_uri,
                "cookie_secret": self.cookie_secret.get_secret_value(),
                "client_id": self.client_id,
                "client_secret": self.client_secret.get_secret_value(),
                "server_metadata_url": self.metadata_url,
                "client_kwargs": {"scope": self.scope},
            }
        }

    def seen_by(self, claims: Mapping[str, Any], at: datetime) -> Scope:
        """The accounts of a viewer with these claims; {}: nobody has signed in.

        Raises NotSignedIn, also more than `hours` after the token was issued (its `iat`), and SeesNothing.
        """
        if not claims.get("is_logged_in"):
            raise NotSignedIn("Sign in to see usage and bills.")
        issued_at = claims.get("iat")
        if not isinstance(issued_at, int | float):
            raise NotSignedIn("The identity provider did not say when you signed in: its ID token lacks iat.")
        # In seconds: a number that is no instant, or hours beyond all calendars, are compared like others.
        if issued_at > at.timestamp() + CLOCK_SECONDS:
            raise NotSignedIn("The identity provider says that you signed in after now: its ID token's iat is wrong.")
        if not issued_at > at.timestamp() - self.hours * SECONDS_PER_HOUR:
            raise NotSignedIn("Your session has ended: sign in again.")
        accounts = accounts_of(claims.get(self.accounts_claim))
        if accounts == frozenset():
            raise SeesNothing(
                f"You are signed in as {viewer(claims)}, and the claim {self.accounts_claim} of your ID token names no "
                "account. The administrator of your identity provider sets it."
            )
        return Scope(accounts)


def viewer(claims: Mapping[str, Any]) -> str:
    """What to call a viewer."""
    return str(claims.get("email") or claims.get("name") or claims.get("sub") or "somebody without a name")


def _variable(field: Any) -> str:
    return str(field.description).partition(":")[0]
