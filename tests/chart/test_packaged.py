"""The chart as it is published: what is in the package, and what the release workflow does to it."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import yaml

from tests.chart.helm import CHART, helm

ROOT = CHART.parents[1]
CATEGORIES = {
    *("ai-machine-learning", "database", "integration-delivery", "monitoring-logging", "networking", "security"),
    *("storage", "streaming-messaging"),
}
"""Of Artifact Hub; any other is ignored there."""


def workflow() -> Any:
    return yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))


def steps(job: str) -> str:
    return "\n".join(step.get("run", "") for step in workflow()["jobs"][job]["steps"])


def test_the_package_has_what_the_chart_needs_and_no_file_of_the_tests(tmp_path: Path) -> None:
    subprocess.run([helm(), "package", str(CHART), "--destination", str(tmp_path)], check=True, capture_output=True)
    (package,) = tmp_path.glob("weir-*.tgz")
    with tarfile.open(package) as archive:
        names = {name.removeprefix("weir/") for name in archive.getnames()}
    assert {"Chart.yaml", "values.yaml", "values.schema.json", "README.md", "templates/NOTES.txt"} <= names
    assert not [name for name in names if name.startswith("ci/")]


def test_artifact_hub_is_told_the_licence_and_a_category_that_it_has() -> None:
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["annotations"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'license = "{annotations["artifacthub.io/license"]}"' in project
    assert annotations["artifacthub.io/category"] in CATEGORIES
    assert all(entry["url"] for entry in yaml.safe_load(annotations["artifacthub.io/recommendations"]))


def test_the_release_pushes_the_chart_with_the_version_of_its_tag() -> None:
    assert workflow()[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}
    chart = steps("chart")
    assert "helm package charts/weir --version" in chart
    assert "helm push" in chart
    assert "oci://" in chart
    assert workflow()["permissions"] == {"contents": "read"}


def test_the_lines_that_the_release_changes_are_there(tmp_path: Path) -> None:
    """Its sed puts the published image, by digest, where the values name the local one."""
    file = tmp_path / "charts" / "weir" / "values.yaml"
    file.parent.mkdir(parents=True)
    file.write_text((CHART / "values.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (step,) = [step for step in workflow()["jobs"]["chart"]["steps"] if "repository: weir" in step.get("run", "")]
    digest = f"sha256:{'0' * 64}"
    variables = {"GITHUB_REPOSITORY": "Example/Weir", "DIGEST": digest, "PATH": os.environ["PATH"]}
    subprocess.run(["bash", "-euo", "pipefail", "-c", step["run"]], cwd=tmp_path, env=variables, check=True)
    image = yaml.safe_load(file.read_text(encoding="utf-8"))["image"]
    assert (image["repository"], image["digest"]) == ("ghcr.io/example/weir", digest)


def test_the_image_is_built_on_a_digest_and_signed_with_its_bill_of_materials() -> None:
    runs = steps("image")
    for words in (
        "make sbom",
        "cosign sign --yes",
        "cosign attest --yes --type cyclonedx --predicate build/weir.cdx.json",
    ):
        assert words in runs
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (line,) = re.findall(r"sed -n '(s/\^ARG BASE_IMAGE=//p)' Dockerfile", runs)
    found = subprocess.run(["sed", "-n", line], input=dockerfile, capture_output=True, text=True, check=True).stdout
    assert f"ARG BASE_IMAGE={found}" in dockerfile
    for job in workflow()["jobs"].values():
        assert job["permissions"]["id-token"] == "write", "keyless signatures need it"


def test_an_image_is_signed_only_after_known_vulnerabilities_were_looked_for() -> None:
    """Of Debian, Python and Java, by the digest that is signed; the chart, which names that digest, comes after."""
    image = workflow()["jobs"]["image"]["steps"]
    (scan,) = [number for number, step in enumerate(image) if "trivy-action" in step.get("uses", "")]
    (sign,) = [number for number, step in enumerate(image) if "cosign sign" in step.get("run", "")]
    assert scan < sign
    assert image[scan]["with"]["exit-code"] == "1"
    assert image[scan]["with"]["image-ref"] == image[sign]["env"]["IMAGE"]
    assert not {"if", "continue-on-error"} & image[scan].keys()
    assert workflow()["jobs"]["chart"]["needs"] == "image"
