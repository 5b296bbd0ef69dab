"""Installations as people have them: each renders as reviewed, to objects that Kubernetes and the operators take."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tests.chart.helm import Object, application_spec, pod_specs, render
from tests.chart.installations import FOLDER, GOLDEN, NAMES, installation, summary
from tests.chart.schemas import pod_template, validator, versions
from tests.chart.security import RULES
from tests.chart.test_security import EXAMPLES, rendered

FOREIGN = {"ExternalSecret", "Route"}
"""Kinds that `extraObjects` bring, whose schemas are not here."""


def faults(objects: list[Object]) -> list[str]:
    """What the schemas refuse, and variables that a container has twice."""
    doubles = [f"{pod} has a variable twice" for pod, spec in pod_specs(objects).items() if has_doubles(spec)]
    return schema_faults(objects) + doubles


def schema_faults(objects: list[Object]) -> list[str]:
    """What the schemas refuse."""
    found = []
    for document in objects:
        kind, name = document["kind"], document["metadata"]["name"]
        if kind in FOREIGN:
            continue
        if document["apiVersion"] != versions()[kind]:
            found.append(f"{kind}/{name} is of {document['apiVersion']}")
        errors = list(validator(kind).iter_errors(document))
        if spec := application_spec(document):
            templates = [spec[role]["template"] for role in ("driver", "executor") if "template" in spec[role]]
            # Spark itself adds the image.
            errors += [error for template in templates for error in pod_template().iter_errors(template)]
        found += [f"{kind}/{name} {'.'.join(map(str, error.path))}: {error.message}" for error in errors]
    return found


def has_doubles(spec: dict[str, Any]) -> bool:
    """Whether a container has two variables of one name, which server-side apply refuses."""
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    names = [[variable["name"] for variable in container.get("env", [])] for container in containers]
    return any(len(found) != len(set(found)) for found in names)


def test_there_are_twenty_or_more_and_each_says_what_it_is() -> None:
    assert len(NAMES) >= 20
    for name in NAMES:
        assert (FOLDER / f"{name}-values.yaml").read_text(encoding="utf-8").startswith("# "), name


@pytest.mark.parametrize("name", NAMES)
def test_an_installation_is_what_kubernetes_and_its_operators_take(name: str) -> None:
    assert faults(installation(name)) == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_what_kubernetes_and_its_operators_take(example: str) -> None:
    assert faults(rendered(example)) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_installation_keeps_the_security_rules(name: str) -> None:
    """Strimzi's own container is not among the pods that the rules see."""
    objects = [document for document in installation(name) if document["kind"] not in FOREIGN]
    assert [fault for rule in RULES for fault in rule(objects)] == []


@pytest.mark.parametrize("name", NAMES)
def test_an_installation_makes_the_objects_and_reads_the_secrets_that_were_reviewed(name: str) -> None:
    golden = (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    assert summary(name) == golden, "if this is meant: python -m tests.chart.installations"


def test_no_golden_file_is_left_of_an_installation_that_is_gone() -> None:
    assert sorted(file.stem for file in GOLDEN.iterdir()) == NAMES


@pytest.mark.parametrize(
    ("kind", "field"), [("Deployment", "replica"), ("NetworkPolicy", "ingres"), ("SparkApplication", "driverr")]
)
def test_a_field_that_a_kind_does_not_have_is_found(kind: str, field: str) -> None:
    document = deepcopy(next(each for each in rendered("production.yaml") if each["kind"] == kind))
    document["spec"][field] = {}
    assert any(field in fault for fault in schema_faults([document]))


def test_an_old_version_of_a_kind_and_a_typing_error_in_a_drivers_pod_are_found() -> None:
    objects = deepcopy(rendered("production.yaml"))
    budget = next(each for each in objects if each["kind"] == "PodDisruptionBudget")
    budget["apiVersion"] = "policy/v1beta1"
    assert [fault for fault in schema_faults([budget]) if "is of policy/v1beta1" in fault]
    application = next(each for each in objects if each["kind"] == "SparkApplication")
    application["spec"]["driver"]["template"]["spec"]["tolerationss"] = []
    assert [fault for fault in schema_faults([application]) if "tolerationss" in fault]


def test_a_variable_that_a_user_gives_replaces_the_charts_own_and_both_replace_that_of_all() -> None:
    own = [{"name": "WEIR_TABLES", "value": "s3://elsewhere"}, {"name": "HOME", "value": "/home"}]
    values = {
        "extraEnv": [{"name": "HOME", "value": "/root"}, {"name": "WEIR_TABLES", "value": "s3://nowhere"}],
        **{part: {"env": own} for part in ("jobDefaults", "dashboard", "connect", "api")},
        "batch": {"compact": {"env": own}},
    }
    objects = render("production.yaml", values=values)
    assert faults(objects) == []
    pods = pod_specs(objects)
    for name in ("SparkApplication/weir-ingestion executor", "Deployment/weir-dashboard", "CronJob/weir-compact"):
        (container,) = pods[name]["containers"]
        assert all(variable in container["env"] for variable in own), name
    (setup,) = pods["Job/weir-setup"]["containers"]
    assert {"name": "HOME", "value": "/tmp"} in setup["env"]


def test_a_variable_twice_is_found() -> None:
    objects = deepcopy(rendered("production.yaml"))
    (container,) = pod_specs(objects)["Deployment/weir-dashboard"]["containers"]
    container["env"].append(container["env"][0])
    assert faults(objects) == ["Deployment/weir-dashboard has a variable twice"]
