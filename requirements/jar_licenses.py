"""Writes the licences of the pinned jars, as their POMs state them: `python requirements/jar_licenses.py`.

It reads the POMs that Maven has kept (`~/.m2/repository`) since it resolved `laptop/jars.lock`; a POM without licences
has those of its parent. The list is committed, so that a bill of materials needs neither Maven nor a network.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from sbom import JAR_LICENSES

from laptop.jars import LOCK, parse_lock

HEAD = "# Licences of the jars in laptop/jars.lock, by their POMs. Written by `python requirements/jar_licenses.py`.\n"
SPACE = "{http://maven.apache.org/POM/4.0.0}"
SPDX = {
    **dict.fromkeys(
        (
            *(
                "apache license, version 2.0",
                "the apache license, version 2.0",
                "the apache software license, version 2.0",
            ),
            *("apache software license 2.0", "apache license, 2.0", "apache license 2.0", "apache 2.0 license"),
            "apache-2.0",
        ),
        "Apache-2.0",
    ),
    **dict.fromkeys(("mit", "mit license", "the mit license", "the mit license (mit)"), "MIT"),
    "mit-0": "MIT-0",
    **dict.fromkeys(("bsd 2-clause", "bsd 2-clause license", "bsd-2-clause"), "BSD-2-Clause"),
    **dict.fromkeys(
        ("bsd-3-clause", "modified bsd", "go license", "edl 1.0", "eclipse distribution license - v 1.0"),
        "BSD-3-Clause",
    ),
    **dict.fromkeys(("epl 2.0", "epl-2.0"), "EPL-2.0"),
    **dict.fromkeys(
        (
            *("gpl2 w/ cpe", "gpl-2.0-with-classpath-exception"),
            "the gnu general public license (gpl), version 2, with classpath exception",
        ),
        "GPL-2.0-with-classpath-exception",
    ),
    "common development and distribution license (cddl) version 1.0": "CDDL-1.0",
    "cddl 1.1": "CDDL-1.1",
    "mpl 1.1": "MPL-1.1",
    "public domain, per creative commons cc0": "CC0-1.0",
}
"""What authors write, in small letters → the identifier of SPDX."""


def licenses_of(pom: Path, repository: Path) -> list[str]:
    """The licences of a POM or of the nearest parent that states some. Raises FileNotFoundError without the POM."""
    project = ET.fromstring(pom.read_bytes())
    space = SPACE if project.tag.startswith(SPACE) else ""
    names = [
        " ".join((name.text or "").split()) for name in project.findall(f"{space}licenses/{space}license/{space}name")
    ]
    if names:
        return sorted({identifier(name) for name in names})
    parent = project.find(f"{space}parent")
    if parent is None:
        return []
    group, artifact, version = (
        (parent.findtext(f"{space}{part}") or "").strip() for part in ("groupId", "artifactId", "version")
    )
    return licenses_of(place(repository, group, artifact, version), repository)


def place(repository: Path, group: str, artifact: str, version: str) -> Path:
    """Where Maven keeps a POM."""
    return repository / group.replace(".", "/") / artifact / version / f"{artifact}-{version}.pom"


def identifier(name: str) -> str:
    """The name in SPDX where it is known, else as its author wrote it."""
    return SPDX.get(name.lower(), name)


if __name__ == "__main__":
    repository = Path(sys.argv[1]) if len(sys.argv) > 1 else Path.home() / ".m2" / "repository"
    pinned = sorted({jar for jars in parse_lock(LOCK.read_text(encoding="utf-8")).values() for jar in jars})
    JAR_LICENSES.write_text(
        HEAD
        + "".join(
            f"{jar.group}:{jar.artifact}:{jar.version} "
            f"{' | '.join(licenses_of(place(repository, jar.group, jar.artifact, jar.version), repository))}\n"
            for jar in pinned
        ),
        encoding="utf-8",
    )
    print(f"{JAR_LICENSES}: {len(pinned)} jars")
