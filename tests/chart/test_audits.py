"""The scheduled audits: valid to their operator, in pods as those of joins, and each of them run once."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
import yaml

from jobs.audit.config import AuditConfig
from tests.chart.crd import schedule_schema
from tests.chart.helm import VALUES, HelmRefused, Object, application_spec, of_kind, pod_specs, render
from tests.chart.test_objects import variables

OPERATOR = jsonschema.Draft202012Validator(schedule_schema())
EXAMPLES = sorted(path.name for path in VALUES.glob("*.yaml"))


def audits(*files: str, values: dict[str, Any] | None = None, release: str = "weir") -> dict[str, Object]:
    return of_kind(render(*files, values=values, release=release), "ScheduledSparkApplication")


@pytest.mark.parametrize("example", EXAMPLES)
def test_audits_are_valid_for_the_operator_and_run_one_at_a_time(example: str) -> None:
    found = audits(example)
    assert set(found) == {"weir-audit-hourly", "weir-audit-nightly"}
    for each in found.values():
        OPERATOR.validate(each)
        assert each["spec"]["concurrencyPolicy"] == "Forbid"
        assert application_spec(each)["restartPolicy"] == {"type": "Never"}


def test_the_schema_refuses_what_the_operator_does_not_know() -> None:
    (each, *_) = audits("quickstart.yaml").values()
    for place in (each["spec"], application_spec(each)):
        wrong = copy.deepcopy(each)
        (wrong["spec"] if place is each["spec"] else application_spec(wrong))["zone"] = "UTC"
        with pytest.raises(jsonschema.ValidationError, match="zone"):
            OPERATOR.validate(wrong)


def test_every_hour_the_last_day_is_audited_and_every_night_everything() -> None:
    found = audits("quickstart.yaml")
    arguments = {name: application_spec(each)["arguments"] for name, each in found.items()}
    begin = ["audit", "--config", "/etc/weir/audit.yaml"]
    assert arguments == {"weir-audit-hourly": [*begin, "--last", "1d"], "weir-audit-nightly": begin}
    schedules = {name: (each["spec"]["schedule"], each["spec"]["timeZone"]) for name, each in found.items()}
    assert schedules == {"weir-audit-hourly": ("7 * * * *", "UTC"), "weir-audit-nightly": ("37 4 * * *", "UTC")}


def test_an_audit_reads_and_writes_what_joins_does() -> None:
    objects = render("production.yaml", values={"jobs": {"joins": {"mode": "local"}}})
    pods = pod_specs(objects)
    joins, audit = (
        pods["SparkApplication/weir-joins driver"],
        pods["ScheduledSparkApplication/weir-audit-hourly driver"],
    )
    accounts = {
        document["metadata"]["name"]: application_spec(document)["driver"]["serviceAccount"]
        for document in objects
        if application_spec(document)
    }
    assert accounts["weir-audit-hourly"] == accounts["weir-joins"] == "weir"
    (of_joins,), (of_audit,) = joins["containers"], audit["containers"]
    of_kafka = {name for name in variables(of_audit) if name.startswith("WEIR_KAFKA_")} - {"WEIR_KAFKA_BOOTSTRAP"}
    ours, theirs = variables(of_audit), variables(of_joins)
    assert {name: ours[name] for name in ours.keys() - of_kafka} == {
        name: value for name, value in theirs.items() if name != "EXTRA"
    }
    mounts = [[mount for mount in each["volumeMounts"] if mount["name"] != "extra"] for each in (of_joins, of_audit)]
    assert mounts[0] == mounts[1]
    configs = {volume["name"]: volume for volume in audit["volumes"]}
    assert configs["config"] == {"name": "config", "configMap": {"name": "weir-audit"}}
    assert configs["tables"] in joins["volumes"]


def test_an_audit_has_neither_metrics_nor_a_liveness_probe() -> None:
    (container,) = pod_specs(render("production.yaml"))["ScheduledSparkApplication/weir-audit-nightly driver"][
        "containers"
    ]
    assert not {"ports", "livenessProbe"} & set(container)


def test_an_audit_may_have_executors_of_its_own() -> None:
    objects = render("production.yaml", values={"audit": {"mode": "cluster", "executor": {"instances": 4}}})
    spec = application_spec(of_kind(objects, "ScheduledSparkApplication")["weir-audit-nightly"])
    assert (spec["executor"]["instances"], spec["driver"]["serviceAccount"]) == (4, "weir-driver")
    assert "kubernetesMaster" not in spec["driver"]
    assert "NetworkPolicy/weir-spark-audit" in {f"{each['kind']}/{each['metadata']['name']}" for each in objects}


def test_an_audit_reaches_kafka_and_postgres_through_the_network_policies() -> None:
    policies = of_kind(render("production.yaml"), "NetworkPolicy")
    for name in ("weir-to-kafka", "weir-to-postgres"):
        assert "audit" in policies[name]["spec"]["podSelector"]["matchExpressions"][0]["values"]


def test_the_configuration_parses_back_and_its_heap_is_the_driver_s() -> None:
    given = {"driver_memory_mib": 4096, "billing_wait_seconds": 1_000}
    objects = render("quickstart.yaml", values={"audit": {"config": given}})
    content = yaml.safe_load(of_kind(objects, "ConfigMap")["weir-audit"]["data"]["audit.yaml"])
    assert AuditConfig.model_validate(content) == AuditConfig(**given)
    spec = application_spec(of_kind(objects, "ScheduledSparkApplication")["weir-audit-hourly"])
    assert spec["driver"]["memory"] == "4096m"


def test_a_change_of_the_audit_restarts_no_application() -> None:
    plain, changed = (
        of_kind(render("quickstart.yaml", values=values), "SparkApplication")
        for values in ({}, {"audit": {"config": {"driver_memory_mib": 2048}, "timeZone": "Europe/Berlin"}})
    )
    assert plain == changed


def test_audits_may_be_rescheduled_removed_or_switched_off() -> None:
    weekly = {"schedule": "@weekly", "args": ["--last", "8d"]}
    found = audits("quickstart.yaml", values={"audit": {"runs": {"hourly": None, "weekly": weekly}, "suspend": True}})
    assert set(found) == {"weir-audit-nightly", "weir-audit-weekly"}
    assert all(each["spec"]["suspend"] for each in found.values())
    objects = render("quickstart.yaml", values={"audit": {"enabled": False}})
    assert not [each for each in objects if "audit" in each["metadata"]["name"]]


@pytest.mark.parametrize("length", [29, 30, 40])
def test_the_pods_of_its_runs_have_names_that_kubernetes_takes(length: int) -> None:
    found = audits("quickstart.yaml", values={"fullnameOverride": "a" * length})
    assert len(found) == 2
    for name in found:
        assert len(f"{name}-{10**18}") <= 63
        run = name.rpartition("-")[2]
        assert (f"{'a' * length}-audit-{run}" == name) is (length + len(f"-audit-{run}") <= 43)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"audit": {"config": {"driver_memory": 1}}}, "driver_memory"),
        ({"audit": {"runs": {"hourly": {"schedule": "hourly"}}}}, "schedule"),
        ({"audit": {"runs": {"Nightly": {"schedule": "@daily", "args": []}}}}, "Nightly"),
        ({"audit": {"restart": {"afterFailureSeconds": 1}}}, "restart"),
        ({"audit": {"env": [{"name": "DB_PASSWORD", "value": "x"}]}}, "audit.env gives DB_PASSWORD as plain text"),
    ],
)
def test_what_no_audit_takes_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(HelmRefused, match=says):
        audits("quickstart.yaml", values=values)
