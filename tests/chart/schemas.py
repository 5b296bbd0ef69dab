"""Schemas of every kind of object that the chart renders, all of which refuse unknown fields.

`operator/kubernetes-1.34.json` is the part of Kubernetes' own definitions that the chart uses, as kubernetes-validate
1.37.0 has them (v1.34.0-local-strict; pypi.org/project/kubernetes-validate, Apache-2.0). `podmonitors.json` and
`prometheusrules.json` are from the CRDs of kube-prometheus-stack (github.com/prometheus-community/helm-charts at
cf408a290, Apache-2.0), `httproutes.json` is from the Gateway API's (github.com/kubernetes-sigs/gateway-api, standard,
at 4564255ac, Apache-2.0). All are without their descriptions:
`python -m tests.chart.schemas DEFINITIONS PODMONITORS PROMETHEUSRULES HTTPROUTES`.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.chart.crd import application_schema, schedule_schema, strict, without_descriptions

FOLDER = Path(__file__).with_name("operator")
KUBERNETES = FOLDER / "kubernetes-1.34.json"
CORE = {
    **dict.fromkeys(("ConfigMap", "PersistentVolumeClaim", "Pod", "Secret", "Service", "ServiceAccount"), "v1"),
    **dict.fromkeys(("Deployment", "StatefulSet"), "apps/v1"),
    **dict.fromkeys(("CronJob", "Job"), "batch/v1"),
    **dict.fromkeys(("Ingress", "NetworkPolicy"), "networking.k8s.io/v1"),
    **dict.fromkeys(("Role", "RoleBinding"), "rbac.authorization.k8s.io/v1"),
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "PodDisruptionBudget": "policy/v1",
    "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1",
    "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1",
}
CUSTOM = {
    "PodMonitor": ("monitoring.coreos.com/v1", "podmonitors.json"),
    "PrometheusRule": ("monitoring.coreos.com/v1", "prometheusrules.json"),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", "httproutes.json"),
    "KafkaConnect": ("kafka.strimzi.io/v1", "kafkaconnects-1.2.0.json"),
    "KafkaConnector": ("kafka.strimzi.io/v1", "kafkaconnectors-1.2.0.json"),
}
SPARK = "sparkoperator.k8s.io/v1beta2"


@cache
def validator(kind: str) -> Any:
    """Of whole objects of a kind. Raises KeyError for a kind that the chart does not render."""
    if kind in CORE:
        definitions = json.loads(KUBERNETES.read_text(encoding="utf-8"))
        return _of({"$ref": f"#/$defs/{definitions['kinds'][kind]}", "$defs": definitions["definitions"]})
    if kind == "SparkApplication":
        return _of(application_schema())
    if kind == "ScheduledSparkApplication":
        return _of(schedule_schema())
    schema = strict(json.loads((FOLDER / CUSTOM[kind][1]).read_text(encoding="utf-8")))
    schema["properties"]["metadata"] = {"type": "object"}
    return _of(schema)


def versions() -> dict[str, str]:
    """The `apiVersion` of each kind."""
    custom = {kind: version for kind, (version, _) in CUSTOM.items()}
    return {**CORE, **custom, "SparkApplication": SPARK, "ScheduledSparkApplication": SPARK}


@cache
def pod_template() -> Any:
    """Validates the template of a pod, such as that of a driver."""
    definitions = json.loads(KUBERNETES.read_text(encoding="utf-8"))
    return _of(
        {
            "$ref": "#/$defs/io.k8s.api.core.v1.PodTemplateSpec",
            "$defs": definitions["definitions"],
        }
    )


def _of(schema: dict[str, Any]) -> Any:
    return jsonschema.Draft202012Validator(schema)


def _reduced(definitions: dict[str, Any]) -> dict[str, Any]:
    """The definitions of the core kinds, with all that they refer to."""
    kinds: dict[str, str] = {}
    for name, definition in definitions.items():
        fields = definition.get("properties", {})
        all_kinds, all_versions = (fields.get(field, {}).get("enum", []) for field in ("kind", "apiVersion"))
        if len(all_kinds) == len(all_versions) == 1 and CORE.get(all_kinds[0]) == all_versions[0]:
            kinds[all_kinds[0]] = name
    assert kinds.keys() == CORE.keys()
    found: dict[str, Any] = {}
    left = list(kinds.values())
    while left:
        name = left.pop()
        if name in found:
            continue
        definition = without_descriptions(definitions[name])
        found[name] = definition
        text = json.dumps(definition)
        left += [other for other in definitions if f'#/$defs/{other}"' in text]
    return {"kinds": kinds, "definitions": found}


def _write(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _write(KUBERNETES, _reduced(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["$defs"]))
    for name, path in zip(("PodMonitor", "PrometheusRule", "HTTPRoute"), sys.argv[2:], strict=True):
        crd = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        (version,) = [v for v in crd["spec"]["versions"] if v["name"] == "v1"]
        _write(FOLDER / CUSTOM[name][1], without_descriptions(version["schema"]["openAPIV3Schema"]))
