"""The SparkApplications: valid to their operator, configured verbatim, and changed by nothing but their own values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jobs.analytics.config import AnalyticsConfig
from jobs.backoff import MAX_DELAY_SECONDS
from jobs.billing.config import BillingConfig
from jobs.config_files import validated
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.stack import Jobs
from metering.vocabulary import ALWAYS, Job
from monitoring.liveness import PATH
from tests.chart.crd import application_schema, pod_parts
from tests.chart.helm import CHART, VALUES, HelmRefused, Object, of_kind, pod_specs, render, run_helm

OPERATOR = jsonschema.Draft202012Validator(application_schema())
EXAMPLES = sorted(path.name for path in VALUES.glob("*.yaml"))


VIEWS = {
    "model_health": {
        "of": "outcomes",
        "by": ["model", "region"],
        "measures": {
            "requests": "count",
            "errors": {"count": {"where": {"status": ["error"]}}},
            "users": {"distinct": "user_id"},
        },
    }
}
PATTERNS = {
    "retry_storm": {
        "of": "outcomes",
        "partition_by": ["account"],
        "pattern": "A{3,}",
        "within": "PT10M",
        "define": {"A": 'status = "error"'},
        "measures": {"errors": "count(A)"},
    },
    "burst": {
        "of": "outcomes",
        "partition_by": ["account"],
        "burst": {"times": 10, "at_least": 50, "where": 'status = "error"'},
    },
}
WINDOWS = {"hop": {"size": "PT5M", "every": "PT1M"}, "slide": "PT1H"}


def applications(*files: str, values: dict[str, Any] | None = None, release: str = "weir") -> dict[str, Object]:
    found = of_kind(render(*files, values=values, release=release), "SparkApplication")
    assert found, "whoever looks at each would look at nothing"
    return found


@pytest.mark.parametrize("example", EXAMPLES)
def test_applications_are_what_the_operator_takes(example: str) -> None:
    for application in applications(example).values():
        OPERATOR.validate(application)


@pytest.mark.parametrize("example", EXAMPLES)
def test_their_pod_templates_hold_what_pods_hold(example: str) -> None:
    for name, spec in pod_specs(list(applications(example).values())).items():
        assert set(spec) <= set(pod_parts()), name
        for part, value in spec.items():
            jsonschema.Draft202012Validator(pod_parts()[part]).validate(value)


def test_the_schema_refuses_what_the_operator_does_not_know() -> None:
    application = applications("quickstart.yaml")["weir-joins"]
    application["spec"]["driver"]["memori"] = "1g"
    with pytest.raises(jsonschema.ValidationError, match="memori"):
        OPERATOR.validate(application)


@pytest.mark.parametrize("example", EXAMPLES)
def test_configurations_parse_back_into_the_models_of_the_jobs(example: str) -> None:
    given = yaml.safe_load((VALUES / example).read_text(encoding="utf-8")).get("jobs", {})
    objects = render(example)
    rendered = of_kind(objects, "ConfigMap")
    # Without a view there is no analytics.
    is_on = {job: job in ALWAYS and given.get(job, {}).get("enabled", True) for job in Jobs.model_fields}
    assert len(of_kind(objects, "SparkApplication")) == sum(is_on.values())
    for job, field in Jobs.model_fields.items():
        if is_on[job]:
            model: Any = field.annotation
            content = yaml.safe_load(rendered[f"weir-{job}"]["data"][f"{job}.yaml"])
            expected = model.model_validate(given.get(job, {}).get("config", {}))
            assert model.model_validate(content) == expected
        else:
            assert f"weir-{job}" not in rendered


def test_every_default_of_a_job_may_be_given_and_parses_back() -> None:
    """Helm turns integers into floats on the way: none may come out as 1e+06."""
    given = Jobs().model_dump(mode="json")
    given["ingestion"]["max_records_per_batch"] = 1_000_000
    beside = {
        name: VIEWS if name == "views" else given["analytics"].pop(name)
        for name in ("views", "windows", "patterns", "watches")
    }
    beside["patterns"] = PATTERNS
    jobs = {
        job: {"config": {name: value for name, value in config.items() if name not in beside}}
        for job, config in given.items()
    }
    rendered = of_kind(render("quickstart.yaml", values={"jobs": jobs, **beside}), "ConfigMap")
    given["analytics"] |= beside
    parsed = {job: yaml.safe_load(rendered[f"weir-{job}"]["data"][f"{job}.yaml"]) for job in given}
    assert Jobs.model_validate(parsed) == Jobs.model_validate(given)


@pytest.mark.parametrize("place", ["top", "ingestion"])
def test_contracts_reach_ingestion_as_they_were_given(place: str, tmp_path: Path) -> None:
    """Numbers on both sides of those that Go writes with an exponent, and a null in a list."""
    fields = {
        "gpu_seconds": {"type": ["number", "null"], "minimum": 0, "maximum": 10_000_000_000, "x-weir-column": "gpus"},
        "load": {"type": "number", "format": "double", "minimum": 1e-9, "maximum": 1e25, "x-weir-column": "load"},
        "tier": {"enum": ["<spot>", None], "x-weir-column": "tier"},
    }
    name = "ai.inference.completion.v1"
    base = [{"$ref": f"weir:{name}"}]
    given = {"contracts": [{"$id": name, "allOf": base, "properties": {"data": {"properties": fields}}}]}
    values = given if place == "top" else {"jobs": {"ingestion": {"config": given}}}
    rendered = of_kind(render("quickstart.yaml", values=values), "ConfigMap")
    file = tmp_path / "ingestion.yaml"
    file.write_text(rendered["weir-ingestion"]["data"]["ingestion.yaml"], encoding="utf-8")
    assert validated(IngestionConfig, file).contracts == IngestionConfig.model_validate(given).contracts


def test_views_start_analytics_with_its_rights_rules_and_configuration_and_change_no_other() -> None:
    plain, watched = render("production.yaml"), render("production.yaml", values={"views": VIEWS, "windows": WINDOWS})
    before, after = of_kind(plain, "SparkApplication"), of_kind(watched, "SparkApplication")
    assert after.keys() - before.keys() == {"weir-analytics"}
    assert {name: after[name] for name in before} == before
    config = of_kind(watched, "ConfigMap")["weir-analytics"]["data"]["analytics.yaml"]
    given = AnalyticsConfig.model_validate(yaml.safe_load(config))
    assert given == AnalyticsConfig.model_validate({"views": VIEWS, "windows": WINDOWS})
    added = {f"{found['kind']}/{found['metadata']['name']}" for found in watched}
    added -= {f"{found['kind']}/{found['metadata']['name']}" for found in plain}
    assert added >= {"SparkApplication/weir-analytics", "ConfigMap/weir-analytics"}
    text = json.dumps(of_kind(watched, "PrometheusRule"))
    assert 'job=\\"analytics\\"' in text
    assert 'job=\\"analytics\\"' not in json.dumps(of_kind(plain, "PrometheusRule"))


def test_watches_start_analytics_without_a_view() -> None:
    config = of_kind(render("production.yaml", values={"watches": True}), "ConfigMap")["weir-analytics"]["data"]
    assert AnalyticsConfig.model_validate(yaml.safe_load(config["analytics.yaml"])).watches
    assert "weir-analytics" in of_kind(render("production.yaml", values={"watches": True}), "SparkApplication")


def test_patterns_alone_start_analytics_with_them() -> None:
    rendered = render("production.yaml", values={"patterns": PATTERNS})
    assert "weir-analytics" in of_kind(rendered, "SparkApplication")
    config = of_kind(rendered, "ConfigMap")["weir-analytics"]["data"]["analytics.yaml"]
    given = AnalyticsConfig.model_validate(yaml.safe_load(config))
    assert given == AnalyticsConfig.model_validate({"patterns": PATTERNS})


def test_analytics_that_is_disabled_or_without_a_view_has_no_object_and_no_rule_about_it() -> None:
    off = render("production.yaml", values={"views": VIEWS, "jobs": {"analytics": {"enabled": False}}})
    for objects in (off, render("production.yaml")):
        assert "weir-analytics" not in {found["metadata"]["name"] for found in objects}
        assert 'job=\\"analytics\\"' not in json.dumps(of_kind(objects, "PrometheusRule"))


def test_views_that_are_given_inside_the_job_are_refused_by_name() -> None:
    with pytest.raises(HelmRefused, match=r"jobs\.analytics\.config\.views: give it as views beside jobs."):
        render("quickstart.yaml", values={"jobs": {"analytics": {"config": {"views": VIEWS}}}})


def test_contracts_change_ingestion_only() -> None:
    plain = applications("quickstart.yaml")
    changed = applications("quickstart.yaml", values={"contracts": [{"$id": "gpu.v1"}]})
    assert {name for name in plain if plain[name]["spec"] != changed[name]["spec"]} == {"weir-ingestion"}


def test_a_job_in_local_mode_has_no_executors_no_rights_and_no_token() -> None:
    spec = applications("quickstart.yaml")["weir-joins"]["spec"]
    assert spec["driver"]["kubernetesMaster"] == "local[1]"
    assert spec["driver"]["serviceAccount"] == "weir"
    assert spec["driver"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert "template" not in spec["executor"]


def test_a_job_in_cluster_mode_has_executors_that_its_driver_may_make() -> None:
    objects = render("production.yaml")
    spec = of_kind(objects, "SparkApplication")["weir-ingestion"]["spec"]
    assert "kubernetesMaster" not in spec["driver"]
    assert spec["driver"]["serviceAccount"] == "weir-driver"
    assert spec["driver"]["template"]["spec"]["automountServiceAccountToken"] is True
    assert spec["executor"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert (spec["executor"]["instances"], spec["executor"]["cores"], spec["executor"]["memory"]) == (3, 2, "2g")
    assert {spec["sparkConf"][f"spark.{port}"] for port in ("driver.port", "blockManager.port")} == {"7078", "7079"}
    assert of_kind(objects, "Role")["weir-driver"]["rules"]


def test_an_executor_that_is_lost_counts_for_an_hour_and_not_for_all_of_the_life_of_its_driver() -> None:
    """Spark ends a driver after a few: by default after the fourth of one executor, however many months apart."""
    found = applications("production.yaml", values={"jobDefaults": {"mode": "cluster"}})
    assert {app["spec"]["sparkConf"]["spark.executor.failuresValidityInterval"] for app in found.values()} == {"1h"}
    local = applications("quickstart.yaml")["weir-joins"]["spec"]["sparkConf"]
    assert "spark.executor.failuresValidityInterval" not in local


def test_executors_write_to_a_claim_where_tasks_write_files_and_read_it_elsewhere() -> None:
    found = applications("existing-claim.yaml", values={"jobDefaults": {"mode": "cluster"}})
    writes = set()
    for name, application in found.items():
        (container,) = application["spec"]["executor"]["template"]["spec"]["containers"]
        (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "tables"]
        if not mount.get("readOnly", False):
            writes.add(name.removeprefix("weir-"))
    # The journal; what waits, and usage.
    assert writes == {Job.INGESTION, Job.JOINS}


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_spark_s_secret_is_mounted_where_there_are_executors_and_nowhere_else(role: str) -> None:
    found = applications("production.yaml")
    spec = found["weir-ingestion"]["spec"]
    pod = spec[role]["template"]["spec"]
    (folder,) = [
        mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "spark-secret"
    ]
    assert [volume["secret"] for volume in pod["volumes"] if volume["name"] == "spark-secret"] == [
        {"secretName": "weir-spark"}
    ]
    assert spec["sparkConf"]["spark.authenticate.secret.file"] == f"{folder}/secret"
    assert "weir-spark" not in json.dumps(found["weir-billing"])
    assert "spark.authenticate" not in json.dumps(applications("quickstart.yaml")), "each driver makes its own"


def test_the_heap_of_a_driver_is_what_its_configuration_says() -> None:
    found = applications("production.yaml")
    assert found["weir-ingestion"]["spec"]["driver"]["memory"] == "2048m"
    assert found["weir-billing"]["spec"]["driver"]["memory"] == "512m"


@pytest.mark.parametrize(
    ("field", "value"),
    [("mode", "cluster"), ("terminationGracePeriodSeconds", 5), ("driver", {"memoryOverhead": "1g", "coreLimit": "2"})],
)
def test_a_job_may_override_the_defaults_of_all_jobs(field: str, value: Any) -> None:
    plain = applications("quickstart.yaml")
    changed = applications("quickstart.yaml", values={"jobs": {"joins": {field: value}}})
    assert {name for name in plain if plain[name]["spec"] != changed[name]["spec"]} == {"weir-joins"}


@pytest.mark.parametrize(
    ("job", "config"),
    [
        ("ingestion", {"dedupe_horizon_seconds": 60}),
        ("sessionization", {"session_gap_seconds": 60}),
        ("joins", {"completion_timeout_seconds": 150}),
        ("billing", {"grace_seconds": 600}),
        ("billing", {"late_policy": {"requests": "drop"}}),
    ],
)
def test_a_change_of_one_configuration_changes_that_application_only(job: str, config: dict[str, Any]) -> None:
    plain = applications("quickstart.yaml")
    changed = applications("quickstart.yaml", values={"jobs": {job: {"config": config}}})
    assert {name for name in plain if plain[name]["spec"] != changed[name]["spec"]} == {f"weir-{job}"}


def test_meters_and_dimensions_reach_every_application_as_they_were_given(tmp_path: Path) -> None:
    seconds = {"unit": "second", "sum": "gpu_seconds", "late_policy": "drop", "max_per_event": "86400.000001"}
    answers = {"unit": "answer", "count": "outcomes", "where": {"status": ["completed", "cancelled"], "cached": False}}
    given = {
        "meters": {"gpu_seconds": seconds, "answers": answers},
        "dimensions": ["api_key_id", "account.plan", "account.tags.cost-center/1"],
    }
    changed = applications("quickstart.yaml", values=given)
    plain = applications("quickstart.yaml")
    assert {name for name in plain if plain[name]["spec"] != changed[name]["spec"]} == set(plain)
    rendered = of_kind(render("quickstart.yaml", values=given), "ConfigMap")
    for name, model in (("joins", JoinsConfig), ("billing", BillingConfig)):
        file = tmp_path / f"{name}.json"
        file.write_text(rendered[f"weir-{name}"]["data"][f"{name}.yaml"], encoding="utf-8")
        assert validated(model, file).deciding == model.model_validate(given).deciding


def test_an_upgrade_that_changes_nothing_changes_no_application(tmp_path: Path) -> None:
    """Not even a new version of the chart, new labels, or another look at the same values."""
    plain = applications("production.yaml")
    newer = tmp_path / "weir"
    shutil.copytree(CHART, newer)
    chart = (newer / "Chart.yaml").read_text(encoding="utf-8")
    (newer / "Chart.yaml").write_text(chart.replace("\nversion: 0.2.0", "\nversion: 0.2.1"), encoding="utf-8")
    again = of_kind(
        render("production.yaml", values={"commonLabels": {"team": "other"}}, chart=newer), "SparkApplication"
    )
    assert again["weir-joins"]["metadata"]["labels"]["helm.sh/chart"] == "weir-0.2.1"
    assert {name: a["spec"] for name, a in plain.items()} == {name: a["spec"] for name, a in again.items()}


def test_metrics_are_a_named_port_of_each_driver() -> None:
    for application in applications("production.yaml").values():
        (container,) = application["spec"]["driver"]["template"]["spec"]["containers"]
        assert {"name": "metrics", "containerPort": 8090, "protocol": "TCP"} in container["ports"]


def test_tables_on_a_claim_for_one_node_hold_their_pods_together() -> None:
    objects = render("existing-claim.yaml")
    for name, spec in pod_specs(objects).items():
        mounts = [volume for volume in spec["volumes"] if volume.get("persistentVolumeClaim") == {"claimName": "lake"}]
        terms = (
            spec.get("affinity", {}).get("podAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])
        )
        assert bool(mounts) == any(term["topologyKey"] == "kubernetes.io/hostname" for term in terms), name
    assert sum(bool(spec.get("affinity")) for spec in pod_specs(objects).values()) == 10


def test_a_users_own_affinity_is_kept_beside_it() -> None:
    template = applications("existing-claim.yaml")["weir-joins"]["spec"]["driver"]["template"]["spec"]
    terms = template["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["topologyKey"] for term in terms] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]


def test_shared_storage_holds_nothing_together() -> None:
    assert not any("affinity" in spec for spec in pod_specs(render("production.yaml")).values())


def test_an_object_store_is_an_address_and_a_secret() -> None:
    (container,) = applications("object-store.yaml")["weir-joins"]["spec"]["driver"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["WEIR_TABLES"] == "s3://metering/weir"
    assert variables["AWS_ENDPOINT_URL"] == "http://minio:9000"
    assert variables["AWS_ALLOW_HTTP"] == "true"
    assert container["envFrom"] == [{"secretRef": {"name": "object-store"}}]


def test_a_container_of_azure_is_an_address_and_a_secret_or_a_label_for_its_identity() -> None:
    tables = "abfss://metering@weirtables.dfs.core.windows.net/weir"
    store = {"kind": "abfs", "abfs": {"url": tables, "existingSecret": "azure"}}
    by_key = applications("production.yaml", values={"storage": store})["weir-joins"]["spec"]["driver"]["template"]
    (container,) = by_key["spec"]["containers"]
    assert {"name": "WEIR_TABLES", "value": tables} in container["env"]
    assert container["envFrom"] == [{"secretRef": {"name": "azure"}}]
    label = "azure.workload.identity/use"
    assert label not in by_key["metadata"]["labels"]
    with_identity = applications("production.yaml", values={"storage": {**store, "abfs": {"url": tables}}})
    spec = with_identity["weir-joins"]["spec"]
    for role in ("driver", "executor"):
        template = spec[role]["template"]
        assert template["metadata"]["labels"][label] == "true"
        assert "envFrom" not in template["spec"]["containers"][0]
    given = applications(
        "production.yaml",
        values={"storage": {**store, "abfs": {"url": tables}}, "jobDefaults": {"labels": {label: "false"}}},
    )
    assert given["weir-joins"]["spec"]["driver"]["template"]["metadata"]["labels"][label] == "false"


def test_names_follow_the_release() -> None:
    assert set(applications("quickstart.yaml", release="prod")) == {f"prod-weir-{job}" for job in ALWAYS}


def test_the_chart_is_clean_to_strict_lint() -> None:
    said = run_helm("lint", "--strict", "charts/weir", "--values", "-", values={"quickstart": {"enabled": True}})
    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said


def test_a_configuration_is_json_that_yaml_reads_too() -> None:
    content = of_kind(render("production.yaml"), "ConfigMap")["weir-ingestion"]["data"]["ingestion.yaml"]
    assert json.loads(content) == yaml.safe_load(content)


def test_a_hanging_driver_is_ended_and_executors_are_not_probed() -> None:
    for name, application in applications("production.yaml", values={"jobDefaults": {"mode": "cluster"}}).items():
        (driver,) = application["spec"]["driver"]["template"]["spec"]["containers"]
        (executor,) = application["spec"]["executor"]["template"]["spec"]["containers"]
        probe = driver["livenessProbe"]
        assert probe["httpGet"] == {"path": PATH, "port": "metrics"}, name
        # A driver that crashed is silent until its pod has started it again.
        assert probe["periodSeconds"] * probe["failureThreshold"] > 2 * MAX_DELAY_SECONDS
        assert "livenessProbe" not in executor
