"""Renders the chart with a real helm: `HELM`, one on the PATH, or that of a cluster folder beside the checkout."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

CHART = Path(__file__).parents[2] / "charts" / "weir"
VALUES = Path(__file__).with_name("values")
ARCHIVE = Path(__file__).parents[3] / "shared" / "cluster" / "bin" / "helm.zst"
KUBERNETES = "1.34.4"

HANGS_AFTER_SECONDS = 600
"""Of helm, also where forty charts are rendered at once on a machine that has much else to do."""

Object = dict[str, Any]


class HelmRefused(Exception):
    """Helm did not render; the text is what it said."""


@cache
def helm() -> str:
    """The program's path. Skips the test that asks where there is none."""
    found = os.environ.get("HELM") or shutil.which("helm") or (_unpacked() if ARCHIVE.exists() else None)
    if found is None:
        pytest.skip("no helm: set HELM, or put it on the PATH")
    return found


def _unpacked() -> str:
    version = hashlib.sha256(f"{ARCHIVE.stat().st_mtime_ns} {ARCHIVE.stat().st_size}".encode()).hexdigest()[:12]
    program = Path(sys.prefix) / "weir" / f"helm-{version}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with pa.input_stream(str(ARCHIVE), compression="zstd") as packed:
            partial = program.with_suffix(f".{os.getpid()}")
            partial.write_bytes(packed.read())
        partial.chmod(0o755)
        partial.replace(program)
    return str(program)


def render(
    *files: str,
    release: str = "weir",
    values: dict[str, Any] | None = None,
    api_versions: tuple[str, ...] = (),
    chart: Path = CHART,
    kubernetes: str = KUBERNETES,
    is_upgrade: bool = False,
) -> list[Object]:
    """The objects that values files (names in `values/`), and then `values`, render to. Raises HelmRefused."""
    arguments = [argument for name in files for argument in ("--values", str(VALUES / name))]
    arguments += [argument for version in api_versions for argument in ("--api-versions", version)]
    arguments += ["--kube-version", kubernetes, *(["--is-upgrade"] if is_upgrade else [])]
    text = run_helm(
        "template", release, str(chart), "--namespace", "metering", *arguments, "--values", "-", values=values
    )
    objects: list[Object] = pickle.loads(_pickled(text))
    return objects


@cache
def _pickled(text: str) -> bytes:
    """The documents of a YAML text, which tests may change: a copy takes a thirtieth of the time of parsing."""
    # The parser in C: PyYAML's own takes ten times as long as helm for the panels alone.
    return pickle.dumps([document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document])


def run_helm(*arguments: str, values: dict[str, Any] | None = None) -> str:
    """What helm prints, with `values` on standard input. Raises HelmRefused with what it says."""
    return _printed(arguments, yaml.safe_dump(values or {}))


@cache
def _printed(arguments: tuple[str, ...], values: str) -> str:
    return print_anew(arguments, values)


def print_anew(arguments: tuple[str, ...], values: str) -> str:
    """As `run_helm`, which runs helm once for the same arguments; here it runs again. `values` are YAML."""
    answer = subprocess.run(
        [helm(), arguments[0], "--kube-version", KUBERNETES, *arguments[1:]],
        input=values,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_AFTER_SECONDS,
        # A third less CPU: the garbage of one rendering is small.
        env={**os.environ, "GOGC": "400"},
    )
    if answer.returncode != 0:
        raise HelmRefused(answer.stderr + answer.stdout)
    return answer.stdout


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """The objects of a kind by name."""
    return {document["metadata"]["name"]: document for document in objects if document["kind"] == kind}


def application_spec(document: Object) -> Any:
    """What a SparkApplication is, or each run of a scheduled one; nothing of any other object."""
    match document["kind"]:
        case "SparkApplication":
            return document["spec"]
        case "ScheduledSparkApplication":
            return document["spec"]["template"]
    return {}


def pod_specs(objects: list[Object]) -> dict[str, Object]:
    """Every pod that the objects make, by what makes it: the specs of pods, of templates, of drivers and executors.

    There is one at least: whoever looks at each looks at something.
    """
    found = {}
    for document in objects:
        name = f"{document['kind']}/{document['metadata']['name']}"
        spec = document.get("spec", {})
        match document["kind"]:
            case "Pod":
                found[name] = spec
            case "Deployment" | "StatefulSet" | "Job":
                found[name] = spec["template"]["spec"]
            case "CronJob":
                found[name] = spec["jobTemplate"]["spec"]["template"]["spec"]
            case "SparkApplication" | "ScheduledSparkApplication":
                application = application_spec(document)
                for role in ("driver", "executor"):
                    if "template" in application[role]:
                        found[f"{name} {role}"] = application[role]["template"]["spec"]
    assert found, "these objects make no pod"
    return found
