"""Finds the Java that Spark and Kafka need, or says in one sentence what to install; and its archives of classes."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from deployment.errors import CannotRun

MINIMUM_JAVA = 17
INSTALL_JAVA = (
    f"Weir needs Java {MINIMUM_JAVA} or newer: install it (Debian or Ubuntu: `apt install openjdk-17-jre-headless`) "
    "or set JAVA_HOME to it."
)

QUIET = ("-Xlog:cds=error", "-Xlog:cds+dynamic=error")
"""An archive that does not fit is passed over, which needs no line in every log."""


class JavaMissing(CannotRun):
    """There is no Java, or it is too old; the message says what to install."""


def java_major(version_output: str) -> int | None:
    """The major version in what `java -version` prints, or None: 17 for `"17.0.15"`, 8 for `"1.8.0_402"`."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', version_output)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def find_java() -> Path:
    """The program `java` of JAVA_HOME, else of PATH. Raises `JavaMissing` when absent or older than `MINIMUM_JAVA`."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if program is None:
        raise JavaMissing(f"JAVA_HOME is {home}, where no Java is. {INSTALL_JAVA}" if home else INSTALL_JAVA)
    major = _major_of(program, Path(program).stat().st_mtime_ns)
    if major is None or major < MINIMUM_JAVA:
        raise JavaMissing(f"{program} is Java {major or 'of unknown version'}. {INSTALL_JAVA}")
    return Path(program)


def archive_of(name: str, jars: Path) -> Path:
    """Where the archive of a program's loaded classes is (class data sharing), made or not.

    It is inside the environment, because its class path is absolute; for another Java and other jars it is another.
    """
    java = find_java().resolve()
    environment = f"{java} {java.stat().st_mtime_ns} {jars}"
    return Path(sys.prefix) / "weir" / f"{name}-{hashlib.sha256(environment.encode()).hexdigest()[:12]}.jsa"


def class_sharing(archive: Path) -> list[str]:
    """Java's options to start with an archive; none without it, which is only slower."""
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *QUIET] if archive.exists() else []


@cache
def _major_of(program: str, _changed_ns: int) -> int | None:
    """Asked once of each program, and again when it has changed: an answer takes a tenth of a second."""
    answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    return java_major(answer.stderr + answer.stdout)


if __name__ == "__main__":
    try:
        find_java()
    except JavaMissing as missing:
        sys.exit(str(missing))
