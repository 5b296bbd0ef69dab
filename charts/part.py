"""What every part of the chart's values is made of. Defaults and descriptions are in values.yaml; types are here."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


def _anything_may_be_left_out(schema: dict[str, Any]) -> None:
    # values.yaml has a default for everything.
    schema.pop("required", None)


class Part(BaseModel):
    """A mapping in values.yaml, with camelCase keys as is usual in charts. Unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, json_schema_extra=_anything_may_be_left_out
    )


Kubernetes = dict[str, Any]
"""A mapping that Kubernetes defines and checks."""

Labels = dict[str, str]
Name = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$")]
"""Of a Kubernetes object; empty for none."""

Key = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]{1,253}$")]
"""In a Secret."""

Port = Annotated[int, Field(ge=1, le=65_535)]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")]
Bytes = Annotated[str, Field(pattern=r"^[0-9]+(k|M|G|T|Ki|Mi|Gi|Ti)$")]
"""A Kubernetes quantity with its unit: a bare number would be single bytes."""

SparkBytes = Annotated[str, Field(pattern=r"^[1-9][0-9]*[mg]$")]
"""Memory in Spark's notation: 512m or 1g."""

Cpu = Annotated[str, Field(pattern=r"^([0-9]+m|[0-9]+(\.[0-9]+)?)$")]
NoCpu = Annotated[str, Field(pattern=r"^([0-9]+m|[0-9]+(\.[0-9]+)?)?$")]
HttpUrl = Annotated[str, Field(pattern=r"^(https?://[^\s]+)?$")]
Seconds = Annotated[int, Field(ge=1, le=86_400)]


class Resources(Part):
    """Of a container."""

    requests: dict[str, Quantity]
    limits: dict[str, Quantity]


class ServerSecrets(Part):
    """Of a part without tables, instead of the release's."""

    postgres: Name
    kafka: Name


class ReaderSecrets(Part):
    """Of a part without Kafka, instead of the release's."""

    postgres: Name
    storage: Name


class Secrets(Part):
    """Of one part, instead of the release's."""

    postgres: Name
    kafka: Name
    storage: Name


class Scheduling(Part):
    """Where pods may run."""

    node_selector: Labels
    tolerations: list[Kubernetes]
    affinity: Kubernetes
    priority_class_name: Name
    topology_spread_constraints: list[Kubernetes]
