"""Who may open a connection to whom, by NetworkPolicies that were rendered: a matrix that a golden file holds.

A line for each component of a release lists the ports of its own pods, and of servers outside, that it reaches. As
Kubernetes does it: a pod that any policy of a direction selects may do in it what one of those policies allows.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chart.helm import Object, application_spec, of_kind

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Peer:
    """One end: a pod of the release, of another namespace, or an address outside of the cluster."""

    labels: Labels = field(default_factory=dict)
    namespace: Labels = field(default_factory=dict)
    address: str = ""
    is_ours: bool = False


OUTSIDE = Peer(address="203.0.113.7")
STRANGER = Peer(labels={"app": "any"}, namespace={"kubernetes.io/metadata.name": "elsewhere"})
METADATA = Peer(address="169.254.169.254")


def pods(objects: list[Object]) -> dict[str, Peer]:
    """A pod of each component; of an application with executors one of each role."""
    templates: dict[str, Labels] = {}
    for document in objects:
        spec = document.get("spec", {})
        match document["kind"]:
            case "Deployment" | "StatefulSet" | "Job":
                labels = spec["template"]["metadata"]["labels"]
            case "CronJob":
                labels = spec["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
            case "Pod":
                labels = document["metadata"]["labels"]
            case "SparkApplication" | "ScheduledSparkApplication":
                labels = application_spec(document)["driver"]["template"]["metadata"]["labels"]
            case _:
                continue
        templates[labels["app.kubernetes.io/component"]] = labels
    return {name: Peer(labels=labels, is_ours=True) for name, labels in sorted(templates.items())}


def may(objects: list[Object], source: Peer, target: Peer, port: int) -> bool:
    """Whether the source may open a connection to the target's port."""
    policies = list(of_kind(objects, "NetworkPolicy").values())
    leaves = not source.is_ours or _allows(policies, "Egress", source, target, port)
    return leaves and (not target.is_ours or _allows(policies, "Ingress", target, source, port))


def _allows(policies: list[Object], way: str, ours: Peer, other: Peer, port: int) -> bool:
    chosen = [
        policy["spec"]
        for policy in policies
        if way in policy["spec"]["policyTypes"] and _selects(policy["spec"]["podSelector"], ours.labels)
    ]
    rules = [rule for spec in chosen for rule in spec.get(way.lower(), [])]
    peers = "to" if way == "Egress" else "from"
    return not chosen or any(
        _has_port(rule, port) and (peers not in rule or any(_is(each, other) for each in rule[peers])) for rule in rules
    )


def _has_port(rule: dict[str, Any], port: int) -> bool:
    ports = rule.get("ports")
    return not ports or any(each["port"] == port and each["protocol"] == "TCP" for each in ports)


def _is(peer: dict[str, Any], other: Peer) -> bool:
    if "ipBlock" in peer:
        return bool(other.address) and ipaddress.ip_address(other.address) in ipaddress.ip_network(
            peer["ipBlock"]["cidr"]
        )
    if "namespaceSelector" in peer:
        return (
            not other.address
            and _selects(peer["namespaceSelector"], other.namespace)
            and _selects(peer.get("podSelector", {}), other.labels)
        )
    return other.is_ours and _selects(peer["podSelector"], other.labels)


def _selects(selector: dict[str, Any], labels: Labels) -> bool:
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In", "the chart uses no other"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True


def matrix(objects: list[Object], servers: Mapping[str, tuple[Peer, int]]) -> str:
    """A line for each pod and for strangers: what of the release and of the servers outside it may reach."""
    ours = pods(objects)
    spark = {"ingestion", "sessionization", "joins", "billing", "audit"} & ours.keys()
    inside = {
        # Nothing listens there.
        **{f"{name}:22": (pod, 22) for name, pod in ours.items()},
        **{f"{name}:8090": (ours[name], 8090) for name in sorted(spark | ({"api"} & ours.keys()))},
        **{f"{name}:{port}": (ours[name], port) for name in sorted(spark) for port in (7078, 7079)},
        **{
            f"{name}:{port}": (ours[name], port)
            for name, port in (
                ("dashboard", 8501),
                ("api", 8080),
                ("kafka", 9092),
                ("postgres", 5432),
                ("connect", 8083),
            )
            if name in ours
        },
    }
    lines = []
    for name, source in {**ours, "(another namespace)": STRANGER, "(outside)": OUTSIDE}.items():
        targets = inside if not source.is_ours else {**servers, **inside}
        found = [target for target, (peer, port) in targets.items() if may(objects, source, peer, port)]
        lines.append(f"{name}: {' '.join(found) or '-'}")
    return "\n".join(lines) + "\n"
