"""The chart's values as one model; `jobs.<name>.config` is the job's own model, verbatim."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from charts.connections import Kafka, Postgres, Quickstart, Storage
from charts.part import HttpUrl, Key, Kubernetes, Labels, Name, Part, Port, Scheduling, Seconds, Secrets
from charts.workloads import Api, Audit, Batch, Close, Connect, Dashboard, Job, JobSettings, RunName, Setup, Webhooks
from jobs.analytics.config import AnalyticsConfig
from jobs.billing.config import BillingConfig
from jobs.ingestion.config import MAX_CONTRACTS, ContractDocument, IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.sessionization.config import SessionizationConfig
from jobs.settings.dimensions import Dimensions
from jobs.settings.meters import MeterConfig, MeterName
from jobs.settings.patterns import Patterns
from jobs.settings.price_attributes import PriceAttributes
from jobs.settings.views import Views, WindowsConfig
from metering.meters import MAX_METERS


class Image(Part):
    """`image`."""

    repository: Annotated[str, Field(pattern=r"^[^\s:@]+(:[0-9]+/[^\s:@]+)?$")]
    tag: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]{0,128}$")]
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]
    pull_policy: Literal["Always", "IfNotPresent", "Never"]
    pull_secrets: list[Name]


class Jobs(Part):
    """`jobs`: the applications that there are, and no others."""

    ingestion: Job[IngestionConfig]
    sessionization: Job[SessionizationConfig]
    joins: Job[JoinsConfig]
    billing: Job[BillingConfig]
    analytics: Job[AnalyticsConfig]


class ServiceAccount(Part):
    """`serviceAccount`."""

    create: bool
    name: Name
    driver_name: Name
    dashboard_name: Name
    dashboard_annotations: Labels
    api_name: Name
    api_annotations: Labels
    annotations: Labels


class SecretChanges(Part):
    """`secretChanges`."""

    version: str
    reloader: bool


class SparkSecret(Part):
    """`sparkSecret`."""

    existing_secret: Name
    key: Key


class PodMonitor(Part):
    """`podMonitor`."""

    enabled: bool
    labels: Labels
    interval: Annotated[str, Field(pattern=r"^[1-9][0-9]*(ms|s|m)$")]
    token_secret: Name
    token_key: Key


class PrometheusRule(Part):
    """`prometheusRule`."""

    enabled: bool
    runbook_url: HttpUrl
    database_disk_gib: Annotated[int, Field(ge=0)]
    labels: Labels


class GrafanaDashboard(Part):
    """`grafanaDashboard`."""

    enabled: bool
    labels: Labels
    annotations: Labels


class NetworkPolicies(Part):
    """`networkPolicies`."""

    enabled: bool
    labels: Labels
    metrics_from: list[Kubernetes]
    dashboard_from: list[Kubernetes]
    api_from: list[Kubernetes]
    dns_to: list[Kubernetes]
    dns_ports: list[Port]
    kafka_to: list[Kubernetes]
    kafka_ports: list[Port]
    postgres_to: list[Kubernetes]
    postgres_ports: list[Port]
    object_store_to: list[Kubernetes]
    object_store_ports: list[Port]
    api_server_to: list[Kubernetes]
    api_server_ports: list[Port]
    monitoring_to: list[Kubernetes]
    monitoring_ports: list[Port]
    sign_in_to: list[Kubernetes]


class PodDisruptionBudgets(Part):
    """`podDisruptionBudgets`."""

    enabled: bool
    labels: Labels


class AdmissionPolicy(Part):
    """`admissionPolicy`."""

    enabled: bool


class Test(Part):
    """`test`."""

    secrets: Secrets
    timeout_seconds: Seconds


class Values(Part):
    """All of values.yaml."""

    profile: Literal["", "production"]
    fullname_override: Annotated[str, Field(max_length=40)]
    common_labels: Labels
    pod_user: Literal["image", "platform"]
    image: Image
    quickstart: Quickstart
    kafka: Kafka
    postgres: Postgres
    storage: Storage
    service_account: ServiceAccount
    scheduling: Scheduling
    extra_env: list[Kubernetes]
    extra_volumes: list[Kubernetes]
    extra_volume_mounts: list[Kubernetes]
    extra_objects: list[Kubernetes | str]
    secret_changes: SecretChanges
    contracts: Annotated[list[ContractDocument], Field(max_length=MAX_CONTRACTS)]
    meters: Annotated[dict[MeterName, MeterConfig], Field(max_length=MAX_METERS)]
    dimensions: Dimensions
    price_attributes: PriceAttributes
    views: Views
    watches: bool
    windows: WindowsConfig
    patterns: Patterns
    spark_secret: SparkSecret
    job_defaults: JobSettings
    jobs: Jobs
    audit: Audit
    close: Close
    batch: dict[RunName, Batch]
    setup: Setup
    connect: Connect
    dashboard: Dashboard
    api: Api
    webhooks: Webhooks
    pod_monitor: PodMonitor
    prometheus_rule: PrometheusRule
    grafana_dashboard: GrafanaDashboard
    network_policies: NetworkPolicies
    pod_disruption_budgets: PodDisruptionBudgets
    admission_policy: AdmissionPolicy
    test: Test
    global_: Annotated[Kubernetes, Field(alias="global", description="Helm's own, where this is a subchart.")]
