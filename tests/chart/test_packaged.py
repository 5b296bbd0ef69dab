"""The chart as it is published: what is in the package, and what the release workflow does to it."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import yaml

from tests.chart.helm import CHART, helm, pod_specs, render

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
    """Its sed puts the published images, by digest, where the values name the local one."""
    file = tmp_path / "charts" / "weir" / "values.yaml"
    file.parent.mkdir(parents=True)
    file.write_text((CHART / "values.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (step,) = [step for step in workflow()["jobs"]["chart"]["steps"] if "repository: weir" in step.get("run", "")]
    digest, servers = (f"sha256:{each * 64}" for each in "01")
    names = {"DIGEST": "weir", "QUICKSTART": "quickstart"}
    assert step["env"] == {name: f"${{{{ needs.image.outputs.{output} }}}}" for name, output in names.items()}
    variables = {"GITHUB_REPOSITORY": "Example/Weir", "DIGEST": digest, "QUICKSTART": servers}
    command = ["bash", "-euo", "pipefail", "-c", step["run"]]
    subprocess.run(command, cwd=tmp_path, env={**variables, "PATH": os.environ["PATH"]}, check=True)
    before, after = (yaml.safe_load(each.read_text(encoding="utf-8")) for each in (CHART / "values.yaml", file))
    assert (after["image"]["repository"], after["image"]["digest"]) == ("ghcr.io/example/weir", digest)
    image = {"repository": "ghcr.io/example/weir-quickstart", "tag": "", "digest": servers}
    assert after["quickstart"]["image"] == image
    for values in (before, after):
        del values["image"], values["quickstart"]["image"]
    assert after == before, "nothing else changes"


def test_what_is_published_for_production_has_neither_a_broker_nor_a_database() -> None:
    job = workflow()["jobs"]["image"]
    published = {each["name"]: each["servers"] for each in job["strategy"]["matrix"]["include"]}
    assert published == {"weir": "without", "quickstart": "with"}
    assert job["outputs"] == {name: f"${{{{ steps.digest.outputs.{name} }}}}" for name in published}
    (build,) = [step for step in job["steps"] if "build-push-action" in step.get("uses", "")]
    assert "SERVERS=${{ matrix.servers }}" in build["with"]["build-args"].splitlines()


def test_the_image_is_signed_with_its_bill_of_materials() -> None:
    runs = steps("image")
    for words in (
        "make sbom",
        "cosign sign --yes",
        "cosign attest --yes --type cyclonedx --predicate build/weir.cdx.json",
    ):
        assert words in runs
    for job in workflow()["jobs"].values():
        assert job["permissions"]["id-token"] == "write", "keyless signatures need it"


def test_the_base_image_is_named_by_its_digest_and_a_release_on_a_tag_alone_is_refused(tmp_path: Path) -> None:
    steps_of_image = workflow()["jobs"]["image"]["steps"]
    (refusal,) = [number for number, step in enumerate(steps_of_image) if "ARG BASE_IMAGE" in step.get("run", "")]
    (build,) = [number for number, step in enumerate(steps_of_image) if "build-push-action" in step.get("uses", "")]
    assert refusal < build
    assert "BASE_IMAGE" not in steps_of_image[build]["with"]["build-args"], "what was tried is what is released"
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    by_tag = re.sub(r"^(ARG BASE_IMAGE=\S+)@sha256:[0-9a-f]{64}$", r"\1", dockerfile, flags=re.MULTILINE)
    assert by_tag != dockerfile
    for text, is_taken in ((dockerfile, True), (by_tag, False)):
        (tmp_path / "Dockerfile").write_text(text, encoding="utf-8")
        ended = subprocess.run(["bash", "-euc", steps_of_image[refusal]["run"]], cwd=tmp_path, check=False)
        assert (ended.returncode == 0) is is_taken
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", dockerfile, re.MULTILINE)
    names = {name for _, name in stages if name}
    assert [image for image, _ in stages if image not in names] == ["${BASE_IMAGE}"], "every stage has that base"


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


def test_quickstarts_servers_have_an_image_of_their_own_where_it_is_given() -> None:
    def images(**quickstart: str) -> dict[str, set[str]]:
        values = {"image": {"repository": "weir", "tag": "1"}, "quickstart": {"enabled": True, "image": quickstart}}
        found: dict[str, set[str]] = {"servers": set(), "others": set()}
        for name, spec in pod_specs(render(values=values)).items():
            group = "servers" if name.startswith("StatefulSet/") else "others"
            found[group] |= {container["image"] for container in spec["containers"] if "image" in container}
        return found

    assert images() == {"servers": {"weir:1"}, "others": {"weir:1"}}
    assert images(repository="servers", tag="2") == {"servers": {"servers:2"}, "others": {"weir:1"}}
    digest = f"sha256:{'0' * 64}"
    assert images(repository="servers", digest=digest)["servers"] == {f"servers@{digest}"}
