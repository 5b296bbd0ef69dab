"""Values for workloads: the applications, batch jobs, the setup, the dashboard and the API."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field

from charts.part import (
    Cpu,
    HttpUrl,
    Key,
    Kubernetes,
    Labels,
    Name,
    NoCpu,
    Part,
    Port,
    Quantity,
    ReaderSecrets,
    Resources,
    Scheduling,
    Seconds,
    Secrets,
    ServerSecrets,
    SparkBytes,
)
from jobs.audit.config import AuditConfig
from jobs.close.config import CloseConfig
from jobs.runtime.config import JobConfig

C = TypeVar("C", bound=JobConfig)
RunName = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,14}[a-z0-9])?$")]
Schedule = Annotated[str, Field(pattern=r"^(@(hourly|daily|weekly|monthly)|[^\s]+( [^\s]+){4})$")]
NoImage = Annotated[str, Field(pattern=r"^[^\s]*$")]
UrlPath = Annotated[str, Field(pattern=r"^/[^\s]*$")]
TimeZone = Annotated[str, Field(pattern=r"^[A-Za-z0-9_+/-]+$")]


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


class DynamicAllocation(Part):
    """`jobs.<name>.dynamicAllocation`."""

    enabled: bool
    initial_executors: Annotated[int, Field(ge=1, le=100)]
    min_executors: Annotated[int, Field(ge=1, le=100)]
    max_executors: Annotated[int, Field(ge=1, le=100)]


class BatchSchedulerOptions(Part):
    """`jobs.<name>.batchSchedulerOptions`."""

    queue: str
    priority_class_name: Name
    resources: dict[str, Quantity]


class Application(Part):
    """What every Spark application has."""

    mode: Literal["local", "cluster"]
    driver: Driver
    executor: Executor
    dynamic_allocation: DynamicAllocation
    batch_scheduler: Literal["", "volcano", "yunikorn", "kube-scheduler"]
    batch_scheduler_options: BatchSchedulerOptions
    secrets: Secrets
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


class JobSettings(Application):
    """`jobDefaults`, overridden by `jobs.<name>`."""

    restart: Restart


class Job(JobSettings, Generic[C]):
    """`jobs.<name>`."""

    enabled: bool
    config: C


def _only_required(schema: dict[str, Any]) -> None:
    schema["required"] = ["schedule", "args"]


class AuditRun(Part):
    """`audit.runs.<name>`."""

    model_config = ConfigDict(json_schema_extra=_only_required)

    schedule: Schedule
    args: list[str]


class Audit(Application):
    """`audit`."""

    enabled: bool
    config: AuditConfig
    runs: dict[RunName, AuditRun]
    time_zone: TimeZone
    suspend: bool


class Close(Application):
    """`close`."""

    enabled: bool
    config: CloseConfig
    schedule: Schedule
    args: list[str]
    time_zone: TimeZone
    suspend: bool


class Batch(Part):
    """`batch.<name>`: a command and when it runs."""

    model_config = ConfigDict(json_schema_extra=_only_required)

    schedule: Schedule
    time_zone: TimeZone
    args: Annotated[list[str], Field(min_length=1)]
    resources: Resources
    concurrency_policy: Literal["Forbid", "Allow", "Replace"]
    active_deadline_seconds: Annotated[int, Field(ge=1)]
    suspend: bool
    env: list[Kubernetes]
    secrets: Secrets
    kafka: bool


class Setup(Part):
    """`setup`."""

    enabled: bool
    hook: bool
    annotations: Labels
    active_deadline_seconds: Seconds
    secrets: ServerSecrets
    resources: Resources


class StrimziBuild(Part):
    """`connect.strimzi.build`."""

    image: NoImage
    push_secret: Name


class ClientCertificate(Part):
    """`connect.strimzi.clientCertificate`."""

    secret: Name
    certificate_key: Key
    private_key_key: Key


class CapturedDatabase(Part):
    """`connect.strimzi.database`."""

    host: Annotated[str, Field(pattern=r"^[^\s/@:]*$")]
    port: Port
    name: Annotated[str, Field(min_length=1)]
    user: Annotated[str, Field(min_length=1)]
    password_secret: Name
    password_key: Key


class Strimzi(Part):
    """`connect.strimzi`."""

    enabled: bool
    image: NoImage
    build: StrimziBuild
    kafka_username: str
    client_certificate: ClientCertificate
    database: CapturedDatabase


class Connect(Part):
    """`connect`."""

    enabled: bool
    strimzi: Strimzi
    secrets: ServerSecrets
    resources: Resources
    scheduling: Scheduling
    env: list[Kubernetes]
    labels: Labels
    annotations: Labels


class Service(Part):
    """`dashboard.service` and `api.service`."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"]
    port: Port
    annotations: Labels


class Ingress(Part):
    """`dashboard.ingress`."""

    enabled: bool
    class_name: Name
    annotations: Labels
    hosts: list[Annotated[str, Field(min_length=1)]]
    path: UrlPath
    tls_secret: Name


class Route(Part):
    """`dashboard.route` and `api.route`."""

    enabled: bool
    annotations: Labels
    parent_refs: list[Kubernetes]
    hostnames: list[Annotated[str, Field(min_length=1)]]


class SignIn(Part):
    """`dashboard.signIn`."""

    enabled: bool
    metadata_url: HttpUrl
    client_id: str
    existing_secret: Name
    redirect_uri: Annotated[str, Field(pattern=r"^(https?://[^\s]+/oauth2callback)?$")]
    accounts_claim: str
    scope: Annotated[str, Field(pattern=r"(^| )openid( |$)")]
    hours: Annotated[float, Field(gt=0, le=720)]


class Dashboard(Part):
    """`dashboard`."""

    enabled: bool
    replicas: Annotated[int, Field(ge=1, le=20)]
    accounts: list[Annotated[str, Field(pattern=r"^[^,\s][^,]*$")]]
    sign_in: SignIn
    without_sign_in: bool
    prometheus_url: HttpUrl
    alertmanager_url: HttpUrl
    secrets: ReaderSecrets
    resources: Resources
    scheduling: Scheduling
    env: list[Kubernetes]
    labels: Labels
    annotations: Labels
    service: Service
    ingress: Ingress
    route: Route


class ApiIngress(Part):
    """`api.ingress`."""

    enabled: bool
    class_name: Name
    annotations: Labels
    hosts: list[Annotated[str, Field(min_length=1)]]
    tls_secret: Name


class Autoscaling(Part):
    """`api.autoscaling`."""

    enabled: bool
    min_replicas: Annotated[int, Field(ge=1, le=100)]
    max_replicas: Annotated[int, Field(ge=1, le=100)]
    target_cpu_utilization: Annotated[int, Field(alias="targetCPUUtilization", ge=1, le=100)]


class Oidc(Part):
    """`api.oidc`."""

    issuer: HttpUrl
    audience: str
    accounts_claim: Annotated[str, Field(min_length=1)]
    scopes_claim: Annotated[str, Field(min_length=1)]


class WebhookSecrets(Part):
    """`webhooks.secrets`."""

    postgres: Name


class WebhookMail(Part):
    """`webhooks.mail`."""

    url: Annotated[str, Field(pattern=r"^(smtps?://([^/ :@]+@)?[^/ @]+)?$")]
    sender: str
    existing_secret: Name
    password_key: str
    allow_private: bool


class Webhooks(Part):
    """`webhooks`."""

    enabled: bool
    replicas: Annotated[int, Field(ge=1, le=10)]
    allow_private: bool
    ports: Annotated[list[Port], Field(min_length=1)]
    mail: WebhookMail
    secrets: WebhookSecrets
    resources: Resources
    scheduling: Scheduling
    labels: Labels
    annotations: Labels


class Api(Part):
    """`api`."""

    enabled: bool
    replicas: Annotated[int, Field(ge=1, le=100)]
    autoscaling: Autoscaling
    max_lag_seconds: Annotated[int, Field(ge=0)]
    account_attribute: Annotated[str, Field(min_length=1)]
    requests_per_second: Annotated[int, Field(ge=0)]
    events_per_minute: Annotated[int, Field(ge=0)]
    oidc: Oidc
    reads_tables: bool
    secrets: Secrets
    resources: Resources
    scheduling: Scheduling
    env: list[Kubernetes]
    labels: Labels
    annotations: Labels
    service: Service
    paths: Annotated[list[UrlPath], Field(min_length=1)]
    ingress: ApiIngress
    route: Route
