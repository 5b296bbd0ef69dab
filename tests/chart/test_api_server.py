"""What a real API server says of the chart: it takes all objects, runs all pods restricted, and holds drivers back."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from tests.chart.api_server import PLACES, ApiServer, api_server
from tests.chart.helm import Object, of_kind, pod_specs, render
from tests.waiting import wait_until

pytestmark = pytest.mark.long

NAMESPACE, RESTRICTED = "metering", "restricted"
DRIVER = f"system:serviceaccount:{NAMESPACE}:weir-driver"
OTHERS = {
    *("SparkApplication", "ScheduledSparkApplication", "PodMonitor", "PrometheusRule", "HTTPRoute"),
    *("KafkaConnect", "KafkaConnector"),
}
"""Kinds of operators; `schemas.py` has theirs."""
OF_A_RELEASE = {
    *("ServiceAccount", "Role", "RoleBinding", "ConfigMap"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
}
EXAMPLES = ("quickstart.yaml", "production.yaml", "object-store.yaml", "strimzi.yaml")


def objects(example: str) -> list[Object]:
    return render(example, values={"admissionPolicy": {"enabled": example == "production.yaml"}})


def pod(spec: dict[str, Any], **labels: str) -> Object:
    """A pod of a template; those of Spark get their image when they are made."""
    spec = deepcopy(spec)
    for container in spec["containers"]:
        container.setdefault("image", "weir")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": labels}, "spec": spec}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server with the accounts, the roles and the admission policies of a release."""
    with api_server(tmp_path_factory.mktemp("api-server")) as server:
        enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
        for name, labels in ((NAMESPACE, {}), (RESTRICTED, enforced)):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            assert server.create(namespace, "") == ""
        for name in ("metering", "metering-high"):
            of_pods = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            assert server.create({**of_pods, "value": 1}, "") == ""
        for document in objects("production.yaml"):
            if document["kind"] in OF_A_RELEASE:
                assert server.create(document, NAMESPACE) == "", document["metadata"]["name"]
        for account in of_kind(objects("production.yaml"), "ServiceAccount").values():
            elsewhere = {**account, "metadata": {"name": account["metadata"]["name"]}}
            assert server.create(elsewhere, RESTRICTED) == ""
        # A policy is in force a moment after it was made.
        wait_until(
            lambda: "alone" in server.create(made(serviceAccountName="weir-driver"), NAMESPACE, user=DRIVER, dry=True),
            "the policy",
        )
        yield server


def executor() -> dict[str, Any]:
    spec = deepcopy(pod_specs(objects("production.yaml"))["SparkApplication/weir-ingestion executor"])
    spec["serviceAccountName"] = "weir"
    return spec


def labels_of(application: str) -> dict[str, str]:
    """Those of an executor: its template's, and what Spark adds."""
    found = of_kind(objects("production.yaml"), "SparkApplication")[f"weir-{application}"]
    return {**found["spec"]["executor"]["template"]["metadata"]["labels"], "spark-role": "executor"}


def made(**changes: Any) -> Object:
    """An executor, changed."""
    return pod({**executor(), **changes}, **labels_of("ingestion"))


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_object_is_taken(server: ApiServer, example: str) -> None:
    found = objects(example)
    assert {document["kind"] for document in found} - PLACES.keys() <= OTHERS
    refused = {}
    for document in found:
        if document["kind"] in OTHERS or document["kind"].startswith("ValidatingAdmissionPolicy"):
            continue
        name = document["metadata"]["name"]
        # Some of the release are there.
        another = {**document, "metadata": {**document["metadata"], "name": f"{name[:50]}-2"}}
        if message := server.create(another, NAMESPACE, dry=True):
            refused[f"{document['kind']}/{name}"] = message
    assert refused == {}


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_pod_is_one_of_the_level_restricted(server: ApiServer, example: str) -> None:
    for name, spec in pod_specs(objects(example)).items():
        # Pods of Spark get their account from the application, and those of a StatefulSet a volume for each claim.
        claims = [{"name": "data", "emptyDir": {}}] if name.startswith("StatefulSet/") else []
        whole = {"serviceAccountName": "weir", **spec, "volumes": [*spec.get("volumes", []), *claims]}
        assert server.create(pod(whole), RESTRICTED, dry=True) == "", name


@pytest.mark.parametrize(
    "change",
    [
        {"hostNetwork": True},
        {"securityContext": {"runAsUser": 0}},
        {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]},
    ],
    ids=["node's network", "root", "node's folder"],
)
def test_a_pod_that_may_do_more_is_none(server: ApiServer, change: dict[str, Any]) -> None:
    spec = {**executor(), **change}
    spec["containers"][0].pop("volumeMounts", None)
    assert 'violates PodSecurity "restricted' in server.create(pod(spec), RESTRICTED, dry=True)


def test_a_driver_makes_executors(server: ApiServer) -> None:
    for application in ("ingestion", "joins"):
        spec = pod_specs(objects("production.yaml"))[f"SparkApplication/weir-{application} executor"]
        whole = pod({**spec, "serviceAccountName": "weir"}, **labels_of(application))
        assert server.create(whole, NAMESPACE, user=DRIVER, dry=True) == ""


def test_an_executor_has_the_token_of_a_workload_identity_that_a_cloud_mounts(server: ApiServer) -> None:
    token = {"serviceAccountToken": {"audience": "api://AzureADTokenExchange", "path": "token"}}
    volumes = [*executor()["volumes"], {"name": "azure-identity-token", "projected": {"sources": [token]}}]
    assert server.create(made(volumes=volumes), NAMESPACE, user=DRIVER, dry=True) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"app.kubernetes.io/component": "api"},
        {"app.kubernetes.io/instance": "another"},
        {"spark-role": "driver"},
        {"spark-role": None},
        {"app.kubernetes.io/component": None},
    ],
)
def test_a_driver_gives_no_pod_the_labels_of_another_part(server: ApiServer, changes: dict[str, str | None]) -> None:
    """With those of the API it would get the requests of its Service, and their keys."""
    labels = {name: value for name, value in {**labels_of("ingestion"), **changes}.items() if value}
    assert "with the labels of executors alone" in server.create(
        pod(executor(), **labels), NAMESPACE, user=DRIVER, dry=True
    )
    assert server.create(made(), NAMESPACE, user=DRIVER) == ""
    place = f"api/v1/namespaces/{NAMESPACE}/pods/a"
    try:
        answer = server.ask("PATCH", place, {"metadata": {"labels": changes}}, user=DRIVER, dry=True)
        assert "leaves an executor the labels of one" in answer.json()["message"]
    finally:
        server.client.delete(place, params={"gracePeriodSeconds": 0})


def test_a_driver_neither_changes_nor_deletes_executors_of_another_release(server: ApiServer) -> None:
    document = pod(executor(), **{**labels_of("ingestion"), "app.kubernetes.io/instance": "another"})
    assert server.create(document, NAMESPACE) == ""
    place = f"api/v1/namespaces/{NAMESPACE}/pods/a"
    try:
        image = {"containers": [{"name": executor()["containers"][0]["name"], "image": "theirs"}]}
        for method, body in (("PATCH", {"spec": image}), ("DELETE", None)):
            answer = server.ask(method, place, body, user=DRIVER, dry=True)
            assert "changes and deletes executors and their settings alone" in answer.json()["message"], answer.text
    finally:
        server.client.delete(place, params={"gracePeriodSeconds": 0})


def secret(name: str) -> dict[str, Any]:
    return {"secretKeyRef": {"name": name, "key": "url"}}


PLANTED: dict[str, tuple[dict[str, Any], str]] = {
    "account of a driver": ({"serviceAccountName": "weir-driver"}, "of the executors' account alone"),
    "Secret as a volume": (
        {"volumes": [{"name": "a", "secret": {"secretName": "weir-postgres"}}]},
        "Secrets and claims of executors alone",
    ),
    "Secret in a projected volume": (
        {"volumes": [{"name": "a", "projected": {"sources": [{"secret": {"name": "weir-postgres"}}]}}]},
        "Secrets and claims of executors alone",
    ),
    "Secret beside a token": (
        {
            "volumes": [
                {
                    "name": "a",
                    "projected": {
                        "sources": [{"serviceAccountToken": {"path": "b"}}, {"secret": {"name": "weir-postgres"}}]
                    },
                }
            ]
        },
        "Secrets and claims of executors alone",
    ),
    "Secret by a driver of storage": (
        {"volumes": [{"name": "a", "csi": {"driver": "secrets-store.csi.k8s.io"}}]},
        "Secrets and claims of executors alone",
    ),
    "node's folder": (
        {"volumes": [{"name": "a", "hostPath": {"path": "/var/lib/kubelet"}}]},
        "Secrets and claims of executors alone",
    ),
    "claim of another": (
        {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "data-weir-postgres-0"}}]},
        "Secrets and claims of executors alone",
    ),
    "Secret in a variable": (
        {"containers": [{"name": "a", "image": "b", "env": [{"name": "A", "valueFrom": secret("weir-postgres")}]}]},
        "whose variables come from the Secrets of executors alone",
    ),
    "all of a Secret in variables": (
        {"containers": [{"name": "a", "image": "b", "envFrom": [{"secretRef": {"name": "weir-postgres"}}]}]},
        "whose variables come from the Secrets of executors alone",
    ),
    "Secret in a variable before the start": (
        {"initContainers": [{"name": "a", "image": "b", "env": [{"name": "A", "valueFrom": secret("weir-postgres")}]}]},
        "whose variables come from the Secrets of executors alone",
    ),
    "node's processes": ({"hostPID": True}, "share nothing with their node"),
    "node's devices": (
        {"containers": [{"name": "a", "image": "b", "securityContext": {"privileged": True}}]},
        "share nothing with their node",
    ),
    "node's devices before the start": (
        {"initContainers": [{"name": "a", "image": "b", "securityContext": {"privileged": True}}]},
        "share nothing with their node",
    ),
    "capability": (
        {"containers": [{"name": "a", "image": "b", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
        "share nothing with their node",
    ),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_driver_makes_no_pod_with_more_than_executors_have(server: ApiServer, case: str) -> None:
    change, reason = PLANTED[case]
    planted = made(**change)
    if "volumes" in change:
        planted["spec"]["containers"][0].pop("volumeMounts", None)
    assert reason in server.create(planted, NAMESPACE, user=DRIVER, dry=True)
    assert server.create(planted, NAMESPACE, dry=True) == "", "nobody else is held back"


@pytest.fixture
def theirs(server: ApiServer) -> Iterator[str]:
    """A pod of another part, which holds the database's password."""
    document = made(
        containers=[{"name": "a", "image": "weir", "env": [{"name": "A", "valueFrom": secret("weir-postgres")}]}]
    )
    document["metadata"] = {"name": "weir-api-1", "labels": {"app.kubernetes.io/component": "api"}}
    assert server.create(document, NAMESPACE) == ""
    place = f"api/v1/namespaces/{NAMESPACE}/pods/weir-api-1"
    yield place
    server.client.delete(place, params={"gracePeriodSeconds": 0})


def test_a_driver_neither_changes_nor_deletes_what_is_not_its_own(server: ApiServer, theirs: str) -> None:
    """With another image, the pod would run the driver's program with its own Secrets."""
    words = "changes and deletes executors and their settings alone"
    settings = f"api/v1/namespaces/{NAMESPACE}/configmaps/weir-billing"
    for method, place, body in (
        ("PATCH", theirs, {"spec": {"containers": [{"name": "a", "image": "theirs"}]}}),
        ("PATCH", theirs, {"metadata": {"labels": {"spark-role": "executor"}}}),
        ("DELETE", theirs, None),
        ("PATCH", settings, {"data": {"billing.yaml": "{}"}}),
        ("DELETE", settings, None),
    ):
        answer = server.ask(method, place, body, user=DRIVER, dry=True)
        assert words in answer.json()["message"], (method, place, answer.text)
        assert server.ask(method, place, body, dry=True).is_success


def test_a_driver_changes_and_deletes_its_executors_and_their_settings(server: ApiServer) -> None:
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "labels": {"spark-role": "executor"}},
    }
    for document, kind in ((made(), "pods"), (settings, "configmaps")):
        assert server.create(document, NAMESPACE, user=DRIVER) == ""
        place = f"api/v1/namespaces/{NAMESPACE}/{kind}"
        labels = {"metadata": {"labels": {"spark-exec-inactive": "true"}}}
        assert server.ask("PATCH", f"{place}/a", labels, user=DRIVER).is_success
        answer = server.client.delete(
            place,
            params={"labelSelector": "spark-role=executor", "gracePeriodSeconds": 0},
            headers={"Impersonate-User": DRIVER},
        )
        assert answer.is_success, answer.text


@pytest.mark.parametrize(
    ("account", "method", "path"),
    [
        ("weir-driver", "GET", "api/v1/namespaces/metering/secrets"),
        ("weir-driver", "GET", "api/v1/namespaces/metering/secrets/weir-postgres"),
        ("weir-driver", "POST", "api/v1/namespaces/restricted/pods"),
        ("weir-driver", "POST", "api/v1/namespaces/metering/pods/a/exec"),
        ("weir-driver", "POST", "api/v1/namespaces/metering/serviceaccounts/weir/token"),
        ("weir-driver", "GET", "apis/rbac.authorization.k8s.io/v1/namespaces/metering/roles"),
        ("weir", "GET", "api/v1/namespaces/metering/pods"),
        ("weir", "GET", "api/v1/namespaces/metering/secrets"),
        ("weir-dashboard", "GET", "api/v1/namespaces/metering/pods"),
        ("weir-dashboard", "GET", "api/v1/namespaces/metering/secrets"),
        ("weir-dashboard", "POST", "apis/sparkoperator.k8s.io/v1beta2/namespaces/metering/sparkapplications"),
    ],
)
def test_no_account_may_do_what_its_program_does_not(server: ApiServer, account: str, method: str, path: str) -> None:
    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    answer = server.ask(method, path, made() if path.endswith("/pods") and method == "POST" else None, user=user)
    assert answer.status_code == 403, answer.text
