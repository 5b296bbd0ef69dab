"""Where the dashboard reads from: its environment, read here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dashboard.scope import Scope
from dashboard.sign_in import SeesNothing, SignIn, viewer
from jobs.runtime.postgres.address import SCHEMA_VARIABLE, in_schema
from jobs.runtime.tables_address import tables_problem


class Settings(BaseModel):
    """One field per source of data; an empty one is not connected, and its panels say how to connect it."""

    model_config = ConfigDict(frozen=True)

    postgres_url: str = Field(
        default="", repr=False, description="WEIR_POSTGRES_URL: Address of the database, with a role that only reads."
    )
    tables: str = Field(default="", description="WEIR_TABLES: Root of the Delta tables: a folder, s3://… or abfss://….")
    prometheus_url: str = Field(default="", description="WEIR_PROMETHEUS_URL: Such as http://prometheus:9090.")
    alertmanager_url: str = Field(default="", description="WEIR_ALERTMANAGER_URL: Such as http://alertmanager:9093.")
    namespace: str = Field(default="", description="WEIR_NAMESPACE: On a cluster, where the SparkApplications are.")
    release: str = Field(default="", description="WEIR_RELEASE: On a cluster, the Helm release.")
    scope: Scope = Field(default=Scope(), description="WEIR_ACCOUNTS: Accounts to show, comma-separated; unset: all.")
    sign_in: SignIn | None = Field(default=None, description="WEIR_OIDC_…: How viewers sign in; unset: they do not.")

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """The settings in an environment.

        Raises ValueError for a scope that names no account, for a schema that cannot be Weir's own, for tables at a
        place that no client of ours reaches, and for a sign-in that is configured in part.
        """
        tables = environment.get("WEIR_TABLES", "").rstrip("/")
        if problem := tables_problem(tables):
            raise ValueError(f"WEIR_TABLES {problem}")
        return cls(
            postgres_url=_in_own_schema(environment),
            tables=tables,
            prometheus_url=environment.get("WEIR_PROMETHEUS_URL", "").rstrip("/"),
            alertmanager_url=environment.get("WEIR_ALERTMANAGER_URL", "").rstrip("/"),
            namespace=environment.get("WEIR_NAMESPACE", ""),
            release=environment.get("WEIR_RELEASE", ""),
            scope=Scope.parse(environment.get("WEIR_ACCOUNTS")),
            sign_in=SignIn.of(environment),
        )

    def seen_by(self, claims: Mapping[str, Any], at: datetime) -> Settings:
        """The same for a viewer with these claims of an ID token, who may see less.

        Raises NotSignedIn and SeesNothing where viewers sign in.
        """
        if self.sign_in is None:
            return self
        scope = self.scope.within(self.sign_in.seen_by(claims, at))
        if scope.accounts == frozenset():
            raise SeesNothing(f"You are signed in as {viewer(claims)}, and this dashboard shows none of your accounts.")
        return self.model_copy(update={"scope": scope})

    @property
    def stack(self) -> dict[str, str]:
        """The labels by which Prometheus separates this stack's series and alerts from others'; none on a laptop."""
        labels = {"namespace": self.namespace, "release": self.release}
        return {label: value for label, value in labels.items() if value}


def _in_own_schema(environment: Mapping[str, str]) -> str:
    if not (url := environment.get("WEIR_POSTGRES_URL")):
        return ""
    try:
        return in_schema(url, environment.get(SCHEMA_VARIABLE))
    except ValueError as error:
        raise ValueError(f"{SCHEMA_VARIABLE} {error}") from None
