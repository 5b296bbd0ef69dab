"""The chart as it is published: what is in the package, and what the release workflow does to it."""

from __future__ import annotations

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


def test_the_line_that_the_release_changes_is_in_the_values() -> None:
    """It puts the published image where `repository: weir` stands."""
    assert (CHART / "values.yaml").read_text(encoding="utf-8").count("\n  repository: weir\n") == 1
    assert "^  repository: weir\\$" in steps("chart")
