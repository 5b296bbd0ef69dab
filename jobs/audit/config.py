"""The configuration of an audit."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class AuditConfig(BaseModel):
    """`audit.config` of the chart. The rules of recomputation are in the tables, and in joins' configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    driver_memory_mib: int = Field(
        default=1024,
        ge=512,
        le=65_536,
        description="Java heap of the driver, in MiB.",
    )
    billing_wait_seconds: int = Field(
        default=600,
        ge=1,
        le=86_400,
        description="How long billing may take to fold what the audit appended; after that it has failed.",
    )
