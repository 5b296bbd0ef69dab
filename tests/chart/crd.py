"""The Spark Operator's own schema of a SparkApplication, as a JSON schema that also refuses unknown fields.

`operator/sparkapplications-2.5.1.json` is `crds/sparkoperator.k8s.io_sparkapplications.yaml` of the chart
spark-operator 2.5.1 (github.com/kubeflow/spark-operator, Apache-2.0) without its descriptions:
`python -m tests.chart.crd THAT_FILE`.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

STRIMZI_FILE = Path(__file__).with_name("operator") / "kafkaconnects-1.2.0.json"
"""Pods of Strimzi's have what those of the Spark Operator lack."""
SCHEMA_FILE = Path(__file__).with_name("operator") / "sparkapplications-2.5.1.json"


@cache
def application_schema() -> dict[str, Any]:
    """Of a whole SparkApplication."""
    schema: dict[str, Any] = strict(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


@cache
def schedule_schema() -> dict[str, Any]:
    """Of a whole ScheduledSparkApplication, as `crds/sparkoperator.k8s.io_scheduledsparkapplications.yaml` has it."""
    texts = {name: {"type": "string"} for name in ("schedule", "timeZone", "concurrencyPolicy")}
    numbers = {name: {"type": "integer"} for name in ("successfulRunHistoryLimit", "failedRunHistoryLimit")}
    whole = application_schema()
    spec = {**texts, **numbers, "suspend": {"type": "boolean"}, "template": whole["properties"]["spec"]}
    return {
        **whole,
        "properties": {
            **whole["properties"],
            "spec": {
                "type": "object",
                "properties": spec,
                "required": ["schedule", "template"],
                "additionalProperties": False,
            },
        },
    }


@cache
def pod_parts() -> dict[str, Any]:
    """Schemas of what a pod template holds, by the name in a pod's spec: the CRD takes the template itself unseen.

    The operator describes the same parts of a pod in other places, with the same types.
    """
    spec = application_schema()["properties"]["spec"]["properties"]
    driver = spec["driver"]["properties"]
    container = {
        **driver["sidecars"]["items"],
        "required": ["name"],  # Spark adds image and resources
    }
    return {
        "containers": {"type": "array", "minItems": 1, "items": container},
        "volumes": spec["volumes"],
        "affinity": driver["affinity"],
        "tolerations": driver["tolerations"],
        "securityContext": driver["podSecurityContext"],
        "nodeSelector": driver["nodeSelector"],
        "priorityClassName": driver["priorityClassName"],
        "terminationGracePeriodSeconds": driver["terminationGracePeriodSeconds"],
        "topologySpreadConstraints": json.loads(STRIMZI_FILE.read_text(encoding="utf-8"))["properties"]["spec"][
            "properties"
        ]["template"]["properties"]["pod"]["properties"]["topologySpreadConstraints"],
        "enableServiceLinks": {"type": "boolean"},
        "automountServiceAccountToken": {"type": "boolean"},
    }


def strict(schema: Any) -> Any:
    """Kubernetes prunes unknown fields, or refuses them where it is asked to; here they are always refused."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # What one of several says stands beside all that the whole says.
    closed = {key: value if key in ("oneOf", "anyOf") else strict(value) for key, value in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    return closed


def without_descriptions(value: Any) -> Any:
    """A schema without the sentences in it, which make most of its size."""
    if isinstance(value, list):
        return [without_descriptions(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: without_descriptions(inner)
        for key, inner in value.items()
        if not (key == "description" and isinstance(inner, str))
    }


if __name__ == "__main__":
    crd = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))
    (version,) = [v for v in crd["spec"]["versions"] if v["name"] == "v1beta2"]
    SCHEMA_FILE.write_text(
        json.dumps(without_descriptions(version["schema"]["openAPIV3Schema"]), separators=(",", ":")) + "\n",
        encoding="utf-8",
    )
