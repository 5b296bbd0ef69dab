"""Each example renders exactly the objects that its head promises, wired to each other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.__main__ import (
    ANY_HOST,
    METRICS_HOST_VARIABLE,
    METRICS_PORT_VARIABLE,
    METRICS_TOKEN_VARIABLE,
    PORT_VARIABLE,
)
from api.app import LIVE, OPENMETER, OPENMETER_V3, OWN, READY
from api.events import ACCOUNT_ATTRIBUTE
from api.ingestion_lag import MAX_LAG_SECONDS
from api.producer import ACKNOWLEDGED_WITHIN_SECONDS
from api.server import (
    ACCOUNT_ATTRIBUTE_VARIABLE,
    ENDS_WITHIN_SECONDS,
    EVENTS_PER_MINUTE_VARIABLE,
    MAX_LAG_VARIABLE,
    REQUESTS_PER_SECOND_VARIABLE,
)
from api.traces import MAX_BYTES
from deployment.stack import KAFKA_VARIABLE, POSTGRES_VARIABLE, TABLES_VARIABLE
from metering.vocabulary import Job
from monitoring.alerts import GROUPS
from monitoring.rule_file import Part, rule_file
from tests.chart.helm import CHART, Object, application_spec, of_kind, pod_specs, render

ALWAYS = {
    "ServiceAccount/weir",
    "ConfigMap/weir-ingestion",
    "ConfigMap/weir-joins",
    "ConfigMap/weir-billing",
    "SparkApplication/weir-ingestion",
    "SparkApplication/weir-joins",
    "SparkApplication/weir-billing",
    "ConfigMap/weir-audit",
    "ScheduledSparkApplication/weir-audit-hourly",
    "ScheduledSparkApplication/weir-audit-nightly",
    "CronJob/weir-compact",
    "CronJob/weir-retain",
    "Job/weir-setup",
    "Deployment/weir-connect",
    "ConfigMap/weir-test",
    "Pod/weir-test",
}
SESSIONIZATION = {"ConfigMap/weir-sessionization", "SparkApplication/weir-sessionization"}
DASHBOARD = {
    "ServiceAccount/weir-dashboard",
    "Role/weir-dashboard",
    "RoleBinding/weir-dashboard",
    "Deployment/weir-dashboard",
    "Service/weir-dashboard",
}
POLICIES = {f"NetworkPolicy/weir-{name}" for name in ("deny", "dns", "to-kafka", "to-postgres")}
OWN_SERVERS = {*POLICIES, "NetworkPolicy/weir-setup"}
API = {"ServiceAccount/weir-api", "Deployment/weir-api", "Service/weir-api", "NetworkPolicy/weir-api"}
STRIMZI = {
    *(ALWAYS - {"Deployment/weir-connect"}),
    *SESSIONIZATION,
    *DASHBOARD,
    "PersistentVolumeClaim/weir-tables",
    "KafkaConnect/weir-connect",
    "KafkaConnector/weir-catalog",
}
EXPECTED = {
    "quickstart.yaml": {
        *ALWAYS,
        *SESSIONIZATION,
        *DASHBOARD,
        "PersistentVolumeClaim/weir-tables",
        "Secret/weir-quickstart",
        "StatefulSet/weir-kafka",
        "Service/weir-kafka",
        "StatefulSet/weir-postgres",
        "Service/weir-postgres",
        *POLICIES,
        *(f"NetworkPolicy/weir-{name}" for name in ("dashboard", "kafka", "postgres")),
    },
    "existing-claim.yaml": {*ALWAYS, *SESSIONIZATION, *DASHBOARD, *OWN_SERVERS, "NetworkPolicy/weir-dashboard"},
    "strimzi.yaml": {*STRIMZI, *OWN_SERVERS, "NetworkPolicy/weir-dashboard"},
    "strimzi-certificate.yaml": {*STRIMZI, *OWN_SERVERS, "NetworkPolicy/weir-dashboard"},
    "object-store.yaml": {
        *ALWAYS,
        *OWN_SERVERS,
        "NetworkPolicy/weir-to-object-store",
        *API,
    },
    "production.yaml": {
        *ALWAYS,
        *SESSIONIZATION,
        *DASHBOARD,
        "PersistentVolumeClaim/weir-tables",
        "ServiceAccount/weir-driver",
        "Role/weir-driver",
        "RoleBinding/weir-driver",
        "Ingress/weir-dashboard",
        *API,
        "HorizontalPodAutoscaler/weir-api",
        "Ingress/weir-api",
        "HTTPRoute/weir-api",
        "PodDisruptionBudget/weir-api",
        "CronJob/weir-tidy",
        "PodMonitor/weir",
        "PodMonitor/weir-api",
        "PrometheusRule/weir",
        "ConfigMap/weir-grafana",
        "PodDisruptionBudget/weir-drivers",
        "PodDisruptionBudget/weir-dashboard",
        *OWN_SERVERS,
        *(f"NetworkPolicy/weir-{name}" for name in ("metrics", "dashboard")),
        *(f"NetworkPolicy/weir-spark-{name}" for name in ("ingestion", "joins")),
    },
}


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container["env"]}


def secret_key(name: str, key: str) -> dict[str, Any]:
    return {"secretKeyRef": {"name": name, "key": key}}


def driver(objects: list[Object], job: str = "joins") -> dict[str, Any]:
    container: dict[str, Any] = pod_specs(objects)[f"SparkApplication/weir-{job} driver"]["containers"][0]
    return container


@pytest.mark.parametrize("example", EXPECTED)
def test_an_example_renders_to_its_objects(example: str) -> None:
    names = [f"{document['kind']}/{document['metadata']['name']}" for document in render(example)]
    assert len(names) == len(set(names))
    assert set(names) == EXPECTED[example]


def test_every_object_is_in_the_namespace_and_labelled_with_its_release() -> None:
    for document in render("production.yaml"):
        metadata = document["metadata"]
        assert metadata["namespace"] == "metering"
        assert metadata["labels"]["app.kubernetes.io/instance"] == "weir"
        assert metadata["labels"]["team"] == "metering"


def test_every_service_account_claim_secret_and_config_map_that_is_named_is_made_or_given() -> None:
    objects = render("production.yaml")
    made = {f"{document['kind']}/{document['metadata']['name']}" for document in objects}
    given = {"ConfigMap/extra", "Secret/kafka-ca", "Secret/weir-spark", "Secret/postgres-ca"}
    for name, spec in pod_specs(objects).items():
        if account := spec.get("serviceAccountName"):
            assert f"ServiceAccount/{account}" in made, name
        for volume in spec["volumes"]:
            for kind, key, field in (
                ("PersistentVolumeClaim", "persistentVolumeClaim", "claimName"),
                ("ConfigMap", "configMap", "name"),
                ("Secret", "secret", "secretName"),
            ):
                assert key not in volume or f"{kind}/{volume[key][field]}" in made | given, name
        mounted = {mount["name"] for c in spec["containers"] for mount in c["volumeMounts"]}
        assert mounted <= {volume["name"] for volume in spec["volumes"]}, name
    drivers = {spec["driver"]["serviceAccount"] for document in objects if (spec := application_spec(document))}
    assert drivers
    assert {f"ServiceAccount/{account}" for account in drivers} <= made


def test_kafka_and_postgres_are_reached_by_secrets_only() -> None:
    found = variables(driver(render("production.yaml"), "ingestion"))
    assert found["WEIR_KAFKA_BOOTSTRAP"] == "kafka-1.example.com:9093,kafka-2.example.com:9093"
    assert found["WEIR_KAFKA_SECURITY_PROTOCOL"] == "SASL_SSL"
    assert found["WEIR_KAFKA_SASL_MECHANISM"] == "SCRAM-SHA-512"
    assert found["WEIR_KAFKA_USERNAME"] == secret_key("kafka-credentials", "username")
    assert found["WEIR_KAFKA_PASSWORD"] == secret_key("kafka-credentials", "password")
    assert found["WEIR_KAFKA_CA_FILE"] == "/etc/weir-kafka/ca.crt"
    assert found["WEIR_POSTGRES_URL"] == secret_key("weir-postgres", "url")
    assert (found["PGSSLMODE"], found["PGSSLROOTCERT"]) == ("verify-full", "/etc/weir-postgres/ca.crt")


@pytest.mark.parametrize(("job", "protocol"), [("ingestion", "SASL_SSL"), ("joins", "PLAINTEXT")])
def test_the_variables_of_a_driver_are_read_by_the_applications(job: str, protocol: str) -> None:
    """joins never speaks to Kafka, and knows its place alone."""
    from jobs.runtime.environment import Environment

    found = {
        name: value if isinstance(value, str) else "postgresql://weir@db/weir"
        for name, value in variables(driver(render("production.yaml"), job)).items()
    }
    environment = Environment.read({**found, "WEIR_JARS": "/jars"})
    assert environment.tables == "/var/lib/weir/tables"
    assert (environment.metrics_host, environment.metrics_port) == ("0.0.0.0", 8090)
    assert environment.kafka.security_protocol == protocol


def test_the_dashboard_is_given_the_reader_and_what_it_reads() -> None:
    from dashboard.settings import Settings

    (container,) = pod_specs(render("production.yaml"))["Deployment/weir-dashboard"]["containers"]
    found = variables(container)
    assert found["WEIR_POSTGRES_URL"] == secret_key("weir-postgres", "dashboard-url")
    assert found["WEIR_POSTGRES_SCHEMA"] == "weir"
    assert found["WEIR_RELEASE"] == "weir"
    settings = Settings.of({name: value for name, value in found.items() if isinstance(value, str)})
    assert settings.scope.accounts == frozenset({"acme", "globex"})
    assert settings.prometheus_url == "http://prometheus.monitoring:9090"
    assert settings.alertmanager_url == "http://alertmanager.monitoring:9093"
    assert settings.tables == "/var/lib/weir/tables"
    assert {"name": "tables", "mountPath": "/var/lib/weir", "readOnly": True} in container["volumeMounts"]


def test_the_dashboard_is_probed_below_the_path_it_is_served_at() -> None:
    (container,) = pod_specs(render("production.yaml"))["Deployment/weir-dashboard"]["containers"]
    assert variables(container)["STREAMLIT_SERVER_BASE_URL_PATH"] == "/live"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/live/_stcore/health", "port": "http"}


def api(*files: str, values: dict[str, Any] | None = None) -> dict[str, Any]:
    """The only container of its pod."""
    (container,) = pod_specs(render(*files, values=values))["Deployment/weir-api"]["containers"]
    found: dict[str, Any] = container
    return found


def test_the_api_runs_only_where_it_is_turned_on() -> None:
    assert not [document for document in render("quickstart.yaml") if document["metadata"]["name"] == "weir-api"]


def test_the_api_reaches_kafka_and_postgres_by_the_secrets_of_the_jobs() -> None:
    found, jobs = variables(api("object-store.yaml")), variables(driver(render("object-store.yaml"), "ingestion"))
    own = {KAFKA_VARIABLE, POSTGRES_VARIABLE, "WEIR_POSTGRES_SCHEMA", "WEIR_KAFKA_SECURITY_PROTOCOL"}
    assert {name: found[name] for name in own} == {name: jobs[name] for name in own}
    assert not {name for name in found if name.startswith(("AWS_", "WEIR_TABLES"))}


@pytest.mark.parametrize("seconds", [0, 3_600, 31_536_000])
def test_the_api_is_configured_with_how_far_ingestion_may_be_behind(seconds: int) -> None:
    assert variables(api("object-store.yaml"))[MAX_LAG_VARIABLE] == str(MAX_LAG_SECONDS)
    found = variables(api("object-store.yaml", values={"api": {"maxLagSeconds": seconds}}))
    assert found[MAX_LAG_VARIABLE] == str(seconds)


def test_the_api_is_configured_with_the_rate_limits_of_keys_and_has_none_by_default() -> None:
    names = (REQUESTS_PER_SECOND_VARIABLE, EVENTS_PER_MINUTE_VARIABLE)
    found = variables(api("object-store.yaml"))
    assert [found[name] for name in names] == ["0", "0"]
    values = {"api": {"requestsPerSecond": 20, "eventsPerMinute": 60_000_000}}
    found = variables(api("object-store.yaml", values=values))
    assert [found[name] for name in names] == ["20", "60000000"]


def test_the_api_is_configured_with_the_attribute_of_a_span_that_names_the_account() -> None:
    assert variables(api("object-store.yaml"))[ACCOUNT_ATTRIBUTE_VARIABLE] == ACCOUNT_ATTRIBUTE
    found = variables(api("object-store.yaml", values={"api": {"accountAttribute": "tenant.id"}}))
    assert found[ACCOUNT_ATTRIBUTE_VARIABLE] == "tenant.id"


READS = {"api": {"enabled": True, "readsTables": True}}


def test_an_api_with_read_access_mounts_the_tables_of_the_jobs() -> None:
    stored = api("object-store.yaml", values=READS)
    jobs = driver(render("object-store.yaml"))
    assert variables(stored)[TABLES_VARIABLE] == variables(jobs)[TABLES_VARIABLE]
    assert stored["envFrom"] == jobs["envFrom"]
    claimed = api("existing-claim.yaml", values=READS)
    assert variables(claimed)[TABLES_VARIABLE] == "/var/lib/weir/tables"
    assert {"name": "tables", "mountPath": "/var/lib/weir", "readOnly": True} in claimed["volumeMounts"]
    unread = api("existing-claim.yaml", values={"api": {"enabled": True}})
    assert "tables" not in {mount["name"] for mount in unread["volumeMounts"]}


def test_a_users_variable_replaces_the_default_of_the_api() -> None:
    names = [variable["name"] for variable in api("production.yaml")["env"]]
    assert len(names) == len(set(names))
    assert variables(api("production.yaml"))[POSTGRES_VARIABLE] == secret_key("weir-postgres", "api-url")


def test_the_api_is_probed_where_it_listens() -> None:
    container = api("production.yaml")
    assert variables(container)[PORT_VARIABLE] == str(container["ports"][0]["containerPort"])
    probed = {probe: container[probe]["httpGet"]["path"] for probe in container if probe.endswith("Probe")}
    assert probed == {"startupProbe": LIVE, "livenessProbe": LIVE, "readinessProbe": READY}
    assert {container[probe]["httpGet"]["port"] for probe in probed} == {container["ports"][0]["name"]}


def test_the_metrics_of_the_api_are_scraped_where_it_serves_them_and_are_in_no_service() -> None:
    objects = render("production.yaml")
    pod = of_kind(objects, "Deployment")["weir-api"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    found = variables(container)
    assert (found[METRICS_HOST_VARIABLE], found[METRICS_PORT_VARIABLE]) == (ANY_HOST, str(ports["metrics"]))
    monitor = of_kind(objects, "PodMonitor")["weir-api"]["spec"]
    assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == ["metrics"]
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert [port["targetPort"] for port in of_kind(objects, "Service")["weir-api"]["spec"]["ports"]] == ["http"]
    assert "PodMonitor/weir-api" not in {
        f"{document['kind']}/{document['metadata']['name']}"
        for document in render("production.yaml", values={"api": {"enabled": False}})
    }


def test_a_pod_of_the_api_may_end_what_it_has_begun() -> None:
    spec = pod_specs(render("production.yaml"))["Deployment/weir-api"]
    program, seconds = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert spec["terminationGracePeriodSeconds"] > int(seconds) + ENDS_WITHIN_SECONDS + ACKNOWLEDGED_WITHIN_SECONDS


def test_an_autoscaler_alone_says_how_many_pods_serve_the_api() -> None:
    objects = render("production.yaml")
    scaler = of_kind(objects, "HorizontalPodAutoscaler")["weir-api"]["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 20)
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "weir-api"}
    assert "replicas" not in of_kind(objects, "Deployment")["weir-api"]["spec"]
    assert of_kind(render("object-store.yaml"), "Deployment")["weir-api"]["spec"]["replicas"] == 2


def test_every_route_of_events_is_let_in_and_health_is_not() -> None:
    objects = render("production.yaml")
    (rule,) = of_kind(objects, "Ingress")["weir-api"]["spec"]["rules"]
    (matches,) = [rule["matches"] for rule in of_kind(objects, "HTTPRoute")["weir-api"]["spec"]["rules"]]
    paths = [path["path"] for path in rule["http"]["paths"]]
    assert paths == [match["path"]["value"] for match in matches]
    for route in (OPENMETER, OPENMETER_V3, OWN):
        assert any(route.startswith(f"{path}/") for path in paths), route
    for route in (LIVE, READY):
        assert not any(route.startswith(path) for path in paths), route


def test_an_ingress_takes_bodies_as_large_as_the_api_does() -> None:
    annotations = of_kind(render("production.yaml"), "Ingress")["weir-api"]["metadata"]["annotations"]
    size = annotations["nginx.ingress.kubernetes.io/proxy-body-size"]
    assert int(size.removesuffix("m")) << 20 > MAX_BYTES


def test_the_api_reaches_kafka_and_postgres_and_nothing_else() -> None:
    policies = of_kind(render("object-store.yaml"), "NetworkPolicy")
    reached = {
        name
        for name, policy in policies.items()
        for expression in policy["spec"]["podSelector"].get("matchExpressions", [])
        if "api" in expression["values"]
    }
    assert reached == {"weir-to-kafka", "weir-to-postgres", "weir-api"}
    (rule,) = policies["weir-api"]["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [8080]


@pytest.mark.parametrize(
    ("example", "hooks"),
    [("production.yaml", "pre-install,pre-upgrade"), ("quickstart.yaml", "post-install,post-upgrade")],
)
def test_setup_runs_when_its_servers_are_there(example: str, hooks: str) -> None:
    job = of_kind(render(example), "Job")["weir-setup"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == hooks
    spec = job["spec"]["template"]["spec"]
    steps = [container["args"] for container in [*spec["initContainers"], *spec["containers"]]]
    assert steps == [
        ["python", "-m", "laptop.quickstart", "wait"],
        ["weir", "topics", "--timeout", "180"],
        ["python", "-m", "jobs", "migrate"],
    ]


def test_a_setup_that_failed_leaves_its_pods_and_their_logs() -> None:
    """Of a Job with `OnFailure` Kubernetes deletes the pod when it gives up: helm says only that the hook failed."""
    for example in ("production.yaml", "quickstart.yaml"):
        job = of_kind(render(example), "Job")["weir-setup"]
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
        assert "hook-failed" not in job["metadata"]["annotations"]["helm.sh/hook-delete-policy"]


@pytest.mark.parametrize(
    ("config", "made"),
    [
        ({"topic": "mine"}, ["mine"]),
        ({"events": [{"topic": "mine"}]}, ["mine"]),
        ({"events": [{"topic": "mine"}, {"topic": "other", "types": ["gpu.v1"]}]}, ["mine", "other"]),
    ],
)
def test_setup_makes_the_topics_of_events_that_ingestion_reads_and_no_other(
    config: dict[str, Any], made: list[str]
) -> None:
    values = {"api": {"enabled": True}, "jobs": {"ingestion": {"config": config}}}
    spec = of_kind(render("quickstart.yaml", values=values), "Job")["weir-setup"]["spec"]["template"]["spec"]
    [args] = [container["args"] for container in spec["initContainers"] if container["name"] == "topics"]
    assert args == ["weir", "topics", "--timeout", "180", *(part for topic in made for part in ("--topic", topic))]


def test_your_own_topics_are_left_alone_if_configured() -> None:
    spec = of_kind(render("object-store.yaml"), "Job")["weir-setup"]["spec"]["template"]["spec"]
    assert [container["name"] for container in spec["initContainers"]] == ["database"]


def test_quickstart_runs_only_what_is_not_given() -> None:
    objects = render("quickstart.yaml", values={"kafka": {"bootstrap": "kafka:9092"}})
    assert set(of_kind(objects, "StatefulSet")) == {"weir-postgres"}
    assert variables(driver(objects))["WEIR_KAFKA_BOOTSTRAP"] == "kafka:9092"


def test_volumes_outlive_the_release_unless_configured_otherwise() -> None:
    kept = render("quickstart.yaml")
    assert of_kind(kept, "PersistentVolumeClaim")["weir-tables"]["metadata"]["annotations"] == {
        "helm.sh/resource-policy": "keep",
        "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
    }
    lost = render("quickstart.yaml", values={"quickstart": {"keep": False}, "storage": {"claim": {"keep": False}}})
    assert "annotations" not in of_kind(lost, "PersistentVolumeClaim")["weir-tables"]["metadata"]
    for objects, fate in ((kept, "Retain"), (lost, "Delete")):
        servers = [server["spec"] for server in of_kind(objects, "StatefulSet").values()]
        assert [spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] for spec in servers] == [fate, fate]


def test_a_batch_job_sees_what_a_driver_sees() -> None:
    objects = render("production.yaml")
    job = of_kind(objects, "CronJob")["weir-tidy"]["spec"]
    assert (job["schedule"], job["timeZone"], job["concurrencyPolicy"]) == ("30 2 * * *", "Europe/Berlin", "Forbid")
    (container,) = job["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["python", "-m", "jobs", "check"]
    missing = set(variables(driver(objects))) - set(variables(container))
    assert missing == {"WEIR_METRICS_HOST", "WEIR_METRICS_PORT", "EXTRA"}


def test_a_batch_job_of_the_chart_may_be_taken_away() -> None:
    assert of_kind(render("quickstart.yaml", values={"batch": {"compact": None, "retain": None}}), "CronJob") == {}


def test_monitors_carry_the_labels_that_select_them() -> None:
    objects = render("production.yaml")
    for kind in ("PodMonitor", "PrometheusRule"):
        assert of_kind(objects, kind)["weir"]["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    assert of_kind(objects, "ConfigMap")["weir-grafana"]["metadata"]["labels"]["grafana_dashboard"] == "1"
    (endpoint,) = of_kind(objects, "PodMonitor")["weir"]["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["honorLabels"]) == ("metrics", True)


def test_with_a_token_drivers_and_the_api_ask_for_it_monitors_bring_it_and_executors_have_none() -> None:
    objects = render("production.yaml", values={"podMonitor": {"tokenSecret": "metrics", "tokenKey": "of-metrics"}})
    asked = {
        name
        for name, spec in pod_specs(objects).items()
        for container in spec["containers"]
        if variables({"env": [], **container}).get(METRICS_TOKEN_VARIABLE) == secret_key("metrics", "of-metrics")
    }
    assert {name for name in asked if not name.endswith(" driver")} == {"Deployment/weir-api"}
    assert {f"SparkApplication/weir-{job} driver" for job in set(Job) - {Job.ANALYTICS}} <= asked
    for monitor in of_kind(objects, "PodMonitor").values():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["authorization"] == {"credentials": {"name": "metrics", "key": "of-metrics"}}
    assert METRICS_TOKEN_VARIABLE not in str(render("production.yaml"))


def rules_of(values: dict[str, Any], release: str = "weir") -> Any:
    objects = render("production.yaml", values=values, release=release)
    (rules,) = of_kind(objects, "PrometheusRule").values()
    return rules["spec"]


def rendered_rules(*disabled: Part, release: str = "weir") -> Any:
    """Without a view there is no analytics."""
    stack, runbook = {"namespace": "metering", "release": release}, "https://weir.example.com/live/runbook"
    disabled = (*disabled, Part.DATABASE_DISK, Part.ANALYTICS)
    return yaml.safe_load(rule_file(GROUPS, runbook=runbook, stack=stack, disabled=disabled))


@pytest.mark.parametrize(
    ("example", "values", "gib"),
    [
        ("production.yaml", {"prometheusRule": {"databaseDiskGib": 250}}, 250),
        ("production.yaml", {}, None),
        ("quickstart.yaml", {"prometheusRule": {"enabled": True}}, 5),
        ("quickstart.yaml", {"prometheusRule": {"enabled": True, "databaseDiskGib": 8}}, 8),
    ],
)
def test_the_disk_of_the_database_is_watched_where_its_size_is_known(
    example: str, values: dict[str, Any], gib: int | None
) -> None:
    (rules,) = of_kind(render(example, values=values), "PrometheusRule").values()
    text = yaml.safe_dump(rules["spec"], width=4_096)
    assert "RELEASE_" not in text
    assert [f"({gib} * 1073741824)" in text, "DatabaseFillsDisk" in text] == [gib is not None] * 2


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize(
    ("values", "disabled"),
    [
        # analytics has none without views, enabled or not.
        *(({"jobs": {job.value: {"enabled": False}}}, [Part(job)]) for job in Job if job is not Job.ANALYTICS),
        ({"audit": {"enabled": False}}, [Part.AUDIT, Part.FULL_AUDIT]),
        ({"audit": {"suspend": True}}, [Part.AUDIT, Part.FULL_AUDIT]),
        ({"audit": {"runs": {"hourly": None, "nightly": None}}}, [Part.AUDIT, Part.FULL_AUDIT]),
        ({"audit": {"runs": {"nightly": None}}}, [Part.FULL_AUDIT]),
        ({"connect": {"enabled": False}}, [Part.CONNECT]),
        ({"api": {"enabled": False}}, [Part.API]),
    ],
    ids=str,
)
def test_disabled_components_have_no_alert_rules(values: dict[str, Any], disabled: list[Part]) -> None:
    assert rules_of(values) == rendered_rules(*disabled)
    assert rules_of(values) != rendered_rules()


def test_the_series_and_the_rules_of_a_release_have_its_name() -> None:
    assert rules_of({}, release="another") == rendered_rules(release="another")
    monitors = of_kind(render("production.yaml", release="another"), "PodMonitor").values()
    assert len(monitors) == 2
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["relabelings"] == [{"targetLabel": "release", "replacement": "another"}]


def test_alerts_and_panels_are_those_of_monitoring() -> None:
    objects = render("production.yaml")
    folder = CHART.parents[1] / "monitoring"
    assert rules_of({}) == rendered_rules()
    panels = of_kind(objects, "ConfigMap")["weir-grafana"]["data"]["weir.json"]
    assert json.loads(panels) == json.loads((folder / "grafana" / "weir.json").read_text(encoding="utf-8"))


def test_an_alert_links_to_the_runbook_where_it_can_be_read() -> None:
    def links(values: dict[str, Any]) -> set[str]:
        rules = of_kind(render("production.yaml", values=values), "PrometheusRule")["weir"]["spec"]["groups"]
        alerts = [rule for group in rules for rule in group["rules"] if "alert" in rule]
        return {rule["annotations"]["runbook_url"].partition("#")[0] for rule in alerts}

    assert links({"prometheusRule": {"runbookUrl": "https://wiki.example/weir"}}) == {"https://wiki.example/weir"}
    assert links({"dashboard": {"ingress": {"enabled": False}}}) == {"runbook"}
    route: dict[str, Any] = {"enabled": True, "parentRefs": [{"name": "public"}]}
    by_route = {"ingress": {"enabled": False, "path": "/live"}, "route": {**route, "hostnames": ["weir.example.org"]}}
    assert links({"dashboard": by_route}) == {"https://weir.example.org/live/runbook"}
    for nobody_knows in ([], ["*.example.org"]):
        by_route["route"] = {**route, "hostnames": nobody_knows}
        assert links({"dashboard": by_route}) == {"runbook"}


def test_every_pod_is_denied_by_default_and_allowed_what_it_needs() -> None:
    policies = of_kind(render("production.yaml"), "NetworkPolicy")
    deny = policies["weir-deny"]["spec"]
    assert "matchExpressions" not in deny["podSelector"]
    assert set(deny) == {"podSelector", "policyTypes"}
    (kafka,) = policies["weir-to-kafka"]["spec"]["egress"]
    assert [port["port"] for port in kafka["ports"]] == [9093]
    spark = policies["weir-spark-joins"]["spec"]["ingress"][0]
    assert [port["port"] for port in spark["ports"]] == [7078, 7079]
    assert spark["from"][0]["podSelector"]["matchExpressions"][0]["values"] == ["joins"]


def test_nodes_are_drained_one_driver_at_a_time() -> None:
    budgets = of_kind(render("production.yaml"), "PodDisruptionBudget")
    assert budgets["weir-drivers"]["spec"]["minAvailable"] == 3
    (others,) = budgets["weir-drivers"]["spec"]["selector"]["matchExpressions"]
    assert (others["operator"], others["values"]) == ("NotIn", ["audit", "close"])
    assert budgets["weir-dashboard"]["spec"]["maxUnavailable"] == 1
    assert budgets["weir-api"]["spec"]["maxUnavailable"] == 1
    # While the API waits for the database no pod of it is ready: by default none could be evicted then.
    for part in ("dashboard", "api"):
        assert budgets[f"weir-{part}"]["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def notes(tmp_path: Path, example: str, values: dict[str, Any] | None = None, *, is_upgrade: bool = False) -> str:
    """What NOTES.txt would print; `helm template` leaves it out, so it is rendered into an object of its own."""
    chart = tmp_path / "weir"
    shutil.copytree(CHART, chart)
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "notes"}}
    text = yaml.safe_dump(document) + 'data: {text: {{ include "weir.notes" . | toJson }}}\n'
    (chart / "templates" / "notes.yaml").write_text(text, encoding="utf-8")
    rendered = render(example, values=values, chart=chart, is_upgrade=is_upgrade)
    said: str = of_kind(rendered, "ConfigMap")["notes"]["data"]["text"]
    return said


def test_the_notes_list_the_next_steps(tmp_path: Path) -> None:
    said = notes(tmp_path, "quickstart.yaml")
    for step in ("helm -n metering test weir", "get sparkapplications", "port-forward service/weir-dashboard"):
        assert step in said


def test_the_notes_of_an_upgrade_say_what_closes_the_way_back(tmp_path: Path) -> None:
    words = "`batches` of ingestion"
    assert words in notes(tmp_path / "upgrade", "production.yaml", is_upgrade=True)
    assert words not in notes(tmp_path / "install", "production.yaml")


@pytest.mark.parametrize(
    ("example", "urls"),
    [
        ("production.yaml", ["https://events.example.com", "events.example.org", "http://weir-api.metering:8080"]),
        ("object-store.yaml", ["http://weir-api.metering:8080"]),
    ],
)
def test_the_notes_show_where_events_are_posted(tmp_path: Path, example: str, urls: list[str]) -> None:
    said = notes(tmp_path, example)
    for word in ("weir keys create --scope ingest", *urls):
        assert word in said


@pytest.mark.parametrize("part", ["jobDefaults", "jobs"])
def test_the_notes_make_no_key_where_ingestion_has_a_role_that_may_not(tmp_path: Path, part: str) -> None:
    own = {"secrets": {"postgres": "weir-ingestion"}}
    said = notes(tmp_path, "production.yaml", {part: own if part == "jobDefaults" else {"ingestion": own}})
    assert "weir keys create --scope ingest" in said
    assert "weir-ingestion-driver -- weir keys" not in said


@pytest.mark.parametrize(
    ("example", "warned"),
    [
        ("quickstart.yaml", ["NOT FOR PRODUCTION", "ReadWriteOnce", "podMonitor.enabled", "prometheusRule.enabled"]),
        ("existing-claim.yaml", ["unencrypted", "postgres.sslMode is empty", "ReadWriteOnce"]),
        ("object-store.yaml", ["jobs.sessionization.enabled is false"]),
        ("production.yaml", ["asks for no password"]),
    ],
)
def test_the_notes_warn_of_what_is_missing(tmp_path: Path, example: str, warned: list[str]) -> None:
    said = notes(tmp_path, example)
    for word in warned:
        assert word in said
    if example == "production.yaml":
        assert said.count("WARNING") == 1


def test_skaffold_gives_the_chart_values_that_it_takes_and_copies_code_where_each_pod_can_write() -> None:
    repository = CHART.parents[1]
    skaffold = yaml.safe_load((repository / "skaffold.yaml").read_text(encoding="utf-8"))
    (release,) = skaffold["deploy"]["helm"]["releases"]
    assert (repository / release["chartPath"]) == CHART
    (file,) = release["valuesFiles"]
    values: dict[str, Any] = yaml.safe_load((repository / file).read_text(encoding="utf-8"))
    for name in release["setValueTemplates"]:
        section, key = name.split(".")
        values.setdefault(section, {})[key] = "built"
    objects = render(values=values)
    assert of_kind(objects, "SparkApplication")["weir-joins"]["spec"]["image"] == "built:built"
    (artifact,) = skaffold["build"]["artifacts"]
    (folder,) = {rule["dest"] for rule in artifact["sync"]["manual"]}
    for name, spec in pod_specs(objects).items():
        (container,) = spec["containers"]
        assert folder in [mount["mountPath"] for mount in container["volumeMounts"]], name
        assert {"name": "WEIR_CODE", "value": folder} in container["env"], name
    assert all(list(repository.glob(rule["src"])) for rule in artifact["sync"]["manual"])
