"""Values of what runs: the applications, batch jobs, the setup and the dashboard."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field

from charts.part import (
    Cpu,
    HttpUrl,
    Kubernetes,
    Labels,
    Name,
    NoCpu,
    Part,
    Port,
    Resources,
    Scheduling,
    Seconds,
    SparkBytes,
)
from jobs.runtime.config import JobConfig

C = TypeVar("C", bound=JobConfig)


class Driver(Part):
    """`jobs.<name>.driver`. Its heap is in the job's own configuration."""

    cores: Annotated[int, Field(ge=1, le=64)]
    core_request: Cpu
    core_limit: NoCpu
    memory_overhead: SparkBytes


class Executor(Part):
    """`jobs.<name>.executor`."""

    instances: Annotated[int, Field(ge=1, le=100)]
    cores: Annotated[int, Field(ge=1, le=64)]
    core_request: Cpu
    core_limit: NoCpu
    memory: SparkBytes
    memory_overhead: SparkBytes


class Restart(Part):
    """`jobs.<name>.restart`."""

    after_failure_seconds: Seconds
    after_submission_failure_seconds: Seconds


class JobSettings(Part):
    """`jobDefaults`, and whatever of it `jobs.<name>` says otherwise."""

    mode: Literal["local", "cluster"]
    driver: Driver
    executor: Executor
    restart: Restart
    termination_grace_period_seconds: Seconds
    scheduling: Scheduling
    labels: Labels
    annotations: Labels
    env: list[Kubernetes]
    env_from: list[Kubernetes]
    volumes: list[Kubernetes]
    volume_mounts: list[Kubernetes]
    spark_conf: Labels
    hadoop_conf: Labels


class Job(JobSettings, Generic[C]):
    """`jobs.<name>`."""

    enabled: bool
    config: C


def _only_required(schema: dict[str, Any]) -> None:
    schema["required"] = ["schedule", "args"]


class Batch(Part):
    """`batch.<name>`: a command and when it runs."""

    model_config = ConfigDict(json_schema_extra=_only_required)

    schedule: Annotated[str, Field(pattern=r"^(@(hourly|daily|weekly|monthly)|[^\s]+( [^\s]+){4})$")]
    time_zone: Annotated[str, Field(pattern=r"^[A-Za-z0-9_+/-]+$")]
    args: Annotated[list[str], Field(min_length=1)]
    resources: Resources
    concurrency_policy: Literal["Forbid", "Allow", "Replace"]
    active_deadline_seconds: Annotated[int, Field(ge=1)]
    suspend: bool
    env: list[Kubernetes]


class Setup(Part):
    """`setup`."""

    enabled: bool
    active_deadline_seconds: Seconds
    resources: Resources


class Service(Part):
    """`dashboard.service`."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"]
    port: Port
    annotations: Labels


class Ingress(Part):
    """`dashboard.ingress`."""

    enabled: bool
    class_name: Name
    annotations: Labels
    hosts: list[Annotated[str, Field(min_length=1)]]
    path: Annotated[str, Field(pattern=r"^/[^\s]*$")]
    tls_secret: Name


class Dashboard(Part):
    """`dashboard`."""

    enabled: bool
    replicas: Annotated[int, Field(ge=1, le=20)]
    accounts: list[Annotated[str, Field(pattern=r"^[^,\s][^,]*$")]]
    prometheus_url: HttpUrl
    alertmanager_url: HttpUrl
    resources: Resources
    scheduling: Scheduling
    env: list[Kubernetes]
    labels: Labels
    annotations: Labels
    service: Service
    ingress: Ingress
