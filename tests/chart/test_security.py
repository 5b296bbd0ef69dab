"""The security rules hold for every example, and each is shown to fail on what it forbids."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from tests.chart.helm import VALUES, Object, of_kind, pod_specs, render
from tests.chart.security import (
    RULES,
    Rule,
    memory_is_limited,
    no_needless_token,
    no_secret_is_plain_text,
    pods_run_restricted,
    roles_are_exact,
    sparks_ui_is_closed,
    the_dashboard_only_reads_applications,
)

EXAMPLES = sorted(path.name for path in VALUES.glob("*.yaml"))


@cache
def rendered(example: str) -> list[Object]:
    return render(example)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_rule_holds(example: str, rule: Rule) -> None:
    assert list(rule(rendered(example))) == []


def driver(objects: list[Object]) -> dict[str, Any]:
    spec: dict[str, Any] = pod_specs(objects)["SparkApplication/weir-joins driver"]
    return spec


def container(objects: list[Object]) -> dict[str, Any]:
    found: dict[str, Any] = driver(objects)["containers"][0]
    return found


def application(objects: list[Object]) -> dict[str, Any]:
    spec: dict[str, Any] = of_kind(objects, "SparkApplication")["weir-joins"]["spec"]
    return spec


def role(objects: list[Object], name: str = "weir-driver") -> dict[str, Any]:
    return of_kind(objects, "Role")[name]


Planted = tuple[str, Rule, Callable[[list[Object]], object], str]


def variable(what: str, name: str, value: str) -> Planted:
    """A secret in a variable of the driver's container."""
    planted = {"name": name, "value": value}
    return what, no_secret_is_plain_text, lambda o: container(o)["env"].append(planted), f"{name} as plain text"


VARIABLES = (
    ("password in a variable", "WEIR_KAFKA_PASSWORD", "hunter2"),
    ("password in a URL", "URL", "postgresql://a:b@c/d"),
    ("key of an API in a variable", "MODEL_API_KEY", "x"),
    ("JAAS in a variable", "X", 'a.ScramLoginModule required password="x";'),
    ("connection string in a variable", "X", "host=db user=a password=b"),
)
PLANTED: list[Planted] = [
    ("root", pods_run_restricted, lambda o: driver(o)["securityContext"].update(runAsUser=0), "run as root"),
    ("maybe root", pods_run_restricted, lambda o: driver(o)["securityContext"].pop("runAsNonRoot"), "run as root"),
    (
        "container as root",
        pods_run_restricted,
        lambda o: container(o)["securityContext"].update(runAsUser=0),
        "run as root",
    ),
    ("no seccomp", pods_run_restricted, lambda o: driver(o)["securityContext"].pop("seccompProfile"), "seccomp"),
    ("node's network", pods_run_restricted, lambda o: driver(o).update(hostNetwork=True), "shares a namespace"),
    (
        "node's folder",
        pods_run_restricted,
        lambda o: driver(o)["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
        "folder of its node",
    ),
    (
        "escalation",
        pods_run_restricted,
        lambda o: container(o)["securityContext"].pop("allowPrivilegeEscalation"),
        "gain privileges",
    ),
    (
        "capability",
        pods_run_restricted,
        lambda o: container(o)["securityContext"]["capabilities"].update(add=["NET_ADMIN"]),
        "keeps capabilities",
    ),
    (
        "writable root",
        pods_run_restricted,
        lambda o: container(o)["securityContext"].update(readOnlyRootFilesystem=False),
        "write to its root",
    ),
    *(variable(*planted) for planted in VARIABLES),
    (
        "basic authentication in an argument of a container",
        no_secret_is_plain_text,
        lambda o: pod_specs(o)["CronJob/weir-compact"]["containers"][0]["args"].append("https://a:b@prometheus:9090"),
        "in its arguments",
    ),
    (
        "key in a setting",
        no_secret_is_plain_text,
        lambda o: application(o)["sparkConf"].update({"spark.hadoop.fs.s3a.secret.key": "x"}),
        "fs.s3a.secret.key in its settings",
    ),
    (
        "password in an argument",
        no_secret_is_plain_text,
        lambda o: application(o)["arguments"].append("--password=x"),
        "in its arguments",
    ),
    (
        "password in a ConfigMap",
        no_secret_is_plain_text,
        lambda o: of_kind(o, "ConfigMap")["weir-joins"]["data"].update(x="url: postgresql://a:b@c/d"),
        "holds a password",
    ),
    ("Spark's UI", sparks_ui_is_closed, lambda o: application(o)["sparkConf"].pop("spark.ui.enabled"), "opens Spark"),
    ("every verb", roles_are_exact, lambda o: role(o)["rules"][0].update(verbs=["*"]), "wildcard"),
    ("every kind", roles_are_exact, lambda o: role(o)["rules"][0].update(resources=["*"]), "wildcard"),
    ("secrets", roles_are_exact, lambda o: role(o)["rules"][0].update(resources=["secrets"]), "reaches"),
    ("all namespaces", roles_are_exact, lambda o: role(o).update(kind="ClusterRole"), "whole cluster"),
    (
        "dashboard that deletes",
        the_dashboard_only_reads_applications,
        lambda o: role(o, "weir-dashboard")["rules"][0].update(verbs=["get", "delete"]),
        "more than read",
    ),
    (
        "dashboard that sees pods",
        the_dashboard_only_reads_applications,
        lambda o: role(o, "weir-dashboard")["rules"][0].update(resources=["pods"]),
        "other things",
    ),
    (
        "token in an executor",
        no_needless_token,
        lambda o: pod_specs(o)["SparkApplication/weir-joins executor"].update(automountServiceAccountToken=True),
        "does not need",
    ),
    (
        "token in a driver alone",
        no_needless_token,
        lambda o: pod_specs(o)["SparkApplication/weir-billing driver"].update(automountServiceAccountToken=True),
        "does not need",
    ),
    (
        "token by default",
        no_needless_token,
        lambda o: driver(o).pop("automountServiceAccountToken"),
        "leaves its token to the default",
    ),
    (
        "token of an account",
        no_needless_token,
        lambda o: of_kind(o, "ServiceAccount")["weir"].pop("automountServiceAccountToken"),
        "gives its token",
    ),
    (
        "no limit",
        memory_is_limited,
        lambda o: pod_specs(o)["Deployment/weir-dashboard"]["containers"][0].pop("resources"),
        "all memory",
    ),
]


@pytest.mark.parametrize(("rule", "plant", "reason"), [case[1:] for case in PLANTED], ids=[case[0] for case in PLANTED])
def test_a_planted_violation_is_found(rule: Rule, plant: Callable[[list[Object]], object], reason: str) -> None:
    objects = deepcopy(rendered("production.yaml"))
    plant(objects)
    assert [found for found in rule(objects) if reason in found]


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for _, rule, _, _ in PLANTED} == set(RULES)
