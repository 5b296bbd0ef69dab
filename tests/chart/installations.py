"""What the installations in charts/weir/ci make: `python -m tests.chart.installations` writes `installations/`.

A file lists the objects by kind, and which keys of which Secrets each pod reads: what a reviewer must see.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.chart.helm import CHART, Object, of_kind, pod_specs, render

FOLDER = CHART / "ci"
GOLDEN = Path(__file__).with_name("installations")
NAMES = sorted(file.name.removesuffix("-values.yaml") for file in FOLDER.glob("*-values.yaml"))


@cache
def installation(name: str) -> list[Object]:
    """The objects that it renders to. Raises HelmRefused."""
    return render(values=yaml.safe_load((FOLDER / f"{name}-values.yaml").read_text(encoding="utf-8")))


def summary(name: str) -> str:
    """Its golden file."""
    objects = installation(name)
    kinds = sorted({document["kind"] for document in objects})
    whole = {
        "objects": {kind: sorted(of_kind(objects, kind)) for kind in kinds},
        "secrets": {pod: found for pod, spec in sorted(pod_specs(objects).items()) if (found := secrets(spec))},
    }
    return yaml.safe_dump(whole, width=120, default_flow_style=None, sort_keys=False)


def secrets(spec: dict[str, Any]) -> list[str]:
    """What a pod reads of Secrets, as SECRET/KEY, or SECRET/* for all of one."""
    found = {f"{volume['secret']['secretName']}/*" for volume in spec.get("volumes", []) if "secret" in volume}
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        for variable in container.get("env", []):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                found.add(f"{reference['name']}/{reference['key']}")
        found |= {f"{each['secretRef']['name']}/*" for each in container.get("envFrom", []) if "secretRef" in each}
    return sorted(found)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in NAMES:
        (GOLDEN / f"{each}.yaml").write_text(summary(each), encoding="utf-8")
