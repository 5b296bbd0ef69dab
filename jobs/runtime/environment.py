"""Where a job runs: addresses, secrets and folders, read from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from jobs.runtime.kafka.access import KafkaAccess, kafka_fields
from jobs.runtime.postgres.address import in_schema, refuse_unfit_schema
from jobs.runtime.tables_address import tables_problem
from jobs.runtime.unreachable import NO_ADDRESS, place
from jobs.settings.problems import reason, sentence


class Environment(BaseModel):
    """Where a job runs, read from `WEIR_*` variables; addresses and secrets are never in a job's configuration."""

    model_config = ConfigDict(frozen=True)

    kafka: KafkaAccess
    postgres_schema: str = Field(default="", description="Weir's own schema, where the address names none: `weir`.")
    postgres_url: str = Field(repr=False, description="Address of the database, with role and password.")
    tables: str = Field(
        description="Root of the Delta tables: a folder, or a URL such as `s3://bucket/weir` or `abfss://container@account.dfs.core.windows.net/weir`."
    )
    checkpoints: Path = Field(description="Folder of Spark's checkpoints, which may be lost.")
    jars: Path = Field(description="Folder of Spark's connectors.")
    metrics_host: str = Field(default="127.0.0.1", description="Address on which the driver serves `/metrics`.")
    metrics_port: int = Field(default=0, ge=0, le=65_535, description="Its port; 0: any that is free.")
    metrics_token: str = Field(
        default="",
        repr=False,
        description="What a reader of `/metrics` must bring (`Authorization: Bearer …`), if anything.",
    )
    erasure_keys: str = Field(
        default="", repr=False, description="Secrets of `weir forget`, separated by commas, the newest first."
    )
    starts_after: Path | None = Field(
        default=None,
        description="A file. Until it is there the driver uses neither broker nor database: its Java starts meanwhile.",
    )
    submitted: bool = Field(
        default=False, description="True in a driver pod: spark-submit has decided master, memory and addresses."
    )

    @field_validator("postgres_schema")
    @classmethod
    def _can_be_weirs_own(cls, schema: str) -> str:
        if schema:
            refuse_unfit_schema(schema)
        return schema

    @field_validator("postgres_url")
    @classmethod
    def _names_a_database(cls, url: str, earlier: ValidationInfo) -> str:
        if place(url) is None:
            raise ValueError(NO_ADDRESS)
        try:
            return in_schema(url, earlier.data.get("postgres_schema"))
        except ValueError as error:
            raise ValueError(f"does not fit: {variable_of('postgres_schema')} {error}") from None

    @field_validator("tables")
    @classmethod
    def _is_reached_by_a_client(cls, tables: str) -> str:
        if problem := tables_problem(tables):
            raise ValueError(problem)
        return tables

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Environment:
        """What the variables say; an empty one counts as absent. Raises `pydantic.ValidationError`."""
        given = {name: value for name, value in environment.items() if value}
        fields: dict[str, Any] = {
            field: given[variable_of(field)] for field in cls.model_fields if variable_of(field) in given
        }
        return cls.model_validate({**fields, "kafka": kafka_fields(given)})


def variable_of(*location: str | int) -> str:
    """The environment variable of a field."""
    return "_".join(("WEIR", *map(str, location))).upper()


def variable_sentence(problem: Mapping[str, Any], *below: str) -> str:
    """What is wrong with a variable, without its value, which may be a password; fields are `below` Environment's."""
    variable = variable_of(*below, *problem["loc"])
    match problem["type"]:
        case "missing":
            return f"{variable} is not set"
        case "value_error":
            is_of_several = isinstance(problem["input"], Mapping)
            return reason(problem) if is_of_several else f"{variable} {reason(problem)}"
    return sentence({**problem, "input": {}}, variable)
