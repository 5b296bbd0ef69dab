"""The network policies allow the connections that the golden files list, and no others.

`python -m tests.chart.test_flows` writes `flows/` anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.chart.flows import METADATA, OUTSIDE, STRANGER, Peer, matrix, may, pods
from tests.chart.helm import Object, of_kind, render
from tests.chart.installations import installation
from tests.chart.test_security import rendered

FOLDER = Path(__file__).with_name("flows")
SERVERS: Mapping[str, tuple[Peer, int]] = {
    "dns": (STRANGER, 53),
    "kubernetes": (OUTSIDE, 443),
    "prometheus": (STRANGER, 9090),
    "their-kafka": (OUTSIDE, 9092),
    "their-kafka-tls": (OUTSIDE, 9093),
    "their-postgres": (OUTSIDE, 5432),
    "their-store": (OUTSIDE, 9000),
    "metadata": (METADATA, 80),
    "ssh": (OUTSIDE, 22),
}
EXAMPLES = ("quickstart", "production", "object-store")


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_policies_allow_what_the_golden_file_lists_and_nothing_else(example: str) -> None:
    golden = (FOLDER / f"{example}.txt").read_text(encoding="utf-8")
    assert matrix(rendered(f"{example}.yaml"), SERVERS) == golden, "if this is meant: python -m tests.chart.test_flows"


def test_policies_are_on_unless_they_are_turned_off() -> None:
    assert of_kind(rendered("existing-claim.yaml"), "NetworkPolicy")
    assert not of_kind(render("existing-claim.yaml", values={"networkPolicies": {"enabled": False}}), "NetworkPolicy")


def test_every_pod_is_denied_what_no_policy_allows() -> None:
    objects = rendered("production.yaml")
    for name, pod in pods(objects).items():
        assert not may(objects, pod, OUTSIDE, 22), name
        assert not may(objects, STRANGER, pod, 22), name


@pytest.mark.parametrize(
    "broken",
    [
        lambda policies: policies.pop("weir-deny"),
        lambda policies: policies["weir-to-kafka"]["spec"]["podSelector"].pop("matchExpressions"),
        lambda policies: policies["weir-dashboard"]["spec"].update(ingress=[{}]),
        lambda policies: policies["weir-spark-joins"]["spec"]["ingress"][0].pop("from"),
    ],
    ids=["no denial", "Kafka for all", "the dashboard's pods open", "Spark's ports open"],
)
def test_a_policy_that_allows_more_changes_the_matrix(broken: Any) -> None:
    objects = deepcopy(rendered("production.yaml"))
    policies = of_kind(objects, "NetworkPolicy")
    broken(policies)
    others = [document for document in objects if document["kind"] != "NetworkPolicy"]
    golden = (FOLDER / "production.txt").read_text(encoding="utf-8")
    assert matrix([*others, *policies.values()], SERVERS) != golden


PEERS = {
    "dnsTo": ("joins", 53),
    "kafkaTo": ("ingestion", 9093),
    "postgresTo": ("joins", 5432),
    "apiServerTo": ("dashboard", 443),
    "monitoringTo": ("dashboard", 9090),
}


@pytest.mark.parametrize("given", PEERS)
def test_servers_that_are_given_are_the_only_ones(given: str) -> None:
    component, port = PEERS[given]
    block = [{"ipBlock": {"cidr": "203.0.113.0/24"}}]
    objects = render("production.yaml", values={"networkPolicies": {given: block}})
    assert may(objects, pods(objects)[component], OUTSIDE, port)
    assert not may(objects, pods(objects)[component], Peer(address="198.51.100.1"), port)
    assert may(rendered("production.yaml"), pods(objects)[component], Peer(address="198.51.100.1"), port)


def test_an_object_store_that_is_given_is_the_only_one() -> None:
    selector = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "minio"}}}]
    objects = render("object-store.yaml", values={"networkPolicies": {"objectStoreTo": selector}})
    joins = pods(objects)["joins"]
    assert may(objects, joins, Peer(namespace={"kubernetes.io/metadata.name": "minio"}), 9000)
    assert not may(objects, joins, STRANGER, 9000)


@pytest.mark.parametrize(
    ("name", "port"), [("msk", 9096), ("confluent-cloud", 9092), ("redpanda", 9093), ("eks-s3", 9094)]
)
def test_the_ports_of_brokers_are_those_of_their_addresses(name: str, port: int) -> None:
    objects = installation(name)
    ingestion = pods(objects)["ingestion"]
    assert [each for each in (9092, 9093, 9094, 9096) if may(objects, ingestion, OUTSIDE, each)] == [port]


def test_a_workload_identity_reaches_what_gives_it_its_credentials_and_a_pod_with_a_key_does_not() -> None:
    with_key = installation("minio")
    for with_identity in (installation("eks-s3"), installation("aks-abfs")):
        joins = pods(with_identity)["joins"]
        assert may(with_identity, joins, METADATA, 80)
        assert may(with_identity, joins, OUTSIDE, 443)
        assert not may(with_identity, joins, OUTSIDE, 80)
    assert not may(with_key, pods(with_key)["joins"], METADATA, 80)


NOTHING_IN_THE_NAMESPACE: Object = {
    "kind": "NetworkPolicy",
    "metadata": {"name": "of-the-platform"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
}


def seen_by_setup(before: list[Object], after: list[Object]) -> list[Object]:
    """The policies while setup runs: those that were there, and what of the new release comes before it."""
    early = [document for document in after if "helm.sh/hook" in document["metadata"].get("annotations", {})]
    return [document for document in (*before, *early) if document["kind"] == "NetworkPolicy"]


def test_setup_reaches_the_servers_of_its_own_release_whatever_policies_are_there() -> None:
    """A hook runs before the release's objects: the first one among those of the namespace, later among older ones."""
    after = render("production.yaml")
    setup = pods(after)["setup"]
    for before in (render("quickstart.yaml"), [NOTHING_IN_THE_NAMESPACE]):
        policies = seen_by_setup(before, after)
        for peer, port in ((STRANGER, 53), (OUTSIDE, 9093), (OUTSIDE, 5432)):
            assert may(policies, setup, peer, port), port
        assert not may(policies, setup, OUTSIDE, 443)
        assert not may(policies, pods(after)["joins"], OUTSIDE, 9093)


def test_the_policy_of_setup_comes_before_its_job_and_ends_with_it() -> None:
    for values, keys in (({}, {"helm.sh/hook-weight"}), ({"setup": {"hook": False}}, {"argocd.argoproj.io/sync-wave"})):
        objects = render("production.yaml", values=values)
        policy = of_kind(objects, "NetworkPolicy")["weir-setup"]["metadata"]["annotations"]
        (job,) = [document["metadata"]["annotations"] for document in of_kind(objects, "Job").values()]
        assert policy.keys() - job.keys() == keys - job.keys()
        assert {policy[key] for key in keys} == {"-1"}
        assert job.items() <= policy.items()
    # Quickstart's servers come first, and the release's policies with them.
    assert "weir-setup" not in of_kind(render("quickstart.yaml"), "NetworkPolicy")


def test_nobody_reads_metrics_unless_somebody_is_to() -> None:
    def read(objects: list[Object], peer: Peer) -> bool:
        return may(objects, peer, pods(objects)["joins"], 8090)

    assert not read(rendered("quickstart.yaml"), STRANGER)
    watched = rendered("production.yaml")
    assert read(watched, STRANGER)
    assert not read(watched, OUTSIDE)
    by_name = installation("kube-prometheus-stack")
    assert read(by_name, Peer(namespace={"kubernetes.io/metadata.name": "monitoring"}))
    assert not read(by_name, STRANGER)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in EXAMPLES:
        (FOLDER / f"{each}.txt").write_text(matrix(render(f"{each}.yaml"), SERVERS), encoding="utf-8")
