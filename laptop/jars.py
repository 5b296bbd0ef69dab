"""The pinned jars: resolved once with the machine's own Maven or Ivy, checked, and kept outside the repository."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from rich.console import Console

from deployment.errors import CannotRun
from laptop.java import find_java

LOCK = Path(__file__).with_name("jars.lock")
DOWNLOADED_JAR = re.compile(r"(?i)^\s*(?:\[info\]\s*)?downloading\b.*?([^/\s]+\.jar)\b")

Report = Callable[[str], None]


class JarSet(StrEnum):
    """Class paths that must not mix: they hold different versions of `kafka-clients` and of Jackson."""

    CONNECTORS = "connectors"
    BROKER = "broker"
    CONNECT = "connect"


class JarsUnavailable(CannotRun):
    """The jars could not be resolved, or are not the pinned ones; the message says what to do."""


@dataclass(frozen=True, order=True)
class Jar:
    """One line of `jars.lock`. Equality of content is decided by `sha256` alone."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """How Maven and Ivy name the file."""
        return f"{self.artifact}-{self.version}.jar"


def parse_lock(text: str) -> dict[JarSet, tuple[Jar, ...]]:
    """Jars per set, sorted. Raises `ValueError` with the line's number for a line that is not `set g:a:v sha256`."""
    sets: dict[JarSet, list[Jar]] = {name: [] for name in JarSet}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = re.fullmatch(r"(connectors|broker|connect) ([^:\s]+):([^:\s]+):([^:\s]+) ([0-9a-f]{64})", line.strip())
        if found is None:
            raise ValueError(f"jars.lock, line {number}: expected `<set> <group>:<artifact>:<version> <sha256>`")
        sets[JarSet(found[1])].append(Jar(*found.groups()[1:]))
    return {name: tuple(sorted(jars)) for name, jars in sets.items()}


def connector_jars() -> Path:
    """The folder with exactly Spark's connectors, resolved first when missing. Raises `JarsUnavailable`."""
    return jar_folder(JarSet.CONNECTORS)


def broker_jars() -> Path:
    """The folder with exactly the Kafka broker and what it needs, resolved first. Raises `JarsUnavailable`."""
    return jar_folder(JarSet.BROKER)


def connect_jars() -> Path:
    """The folder with exactly Kafka Connect and Debezium's connector, resolved first. Raises `JarsUnavailable`."""
    return jar_folder(JarSet.CONNECT)


def jar_folder(name: JarSet, lock: Path = LOCK) -> Path:
    """The cached folder of a set that `lock` pins; another pin is another folder, because its name has their digest."""
    jars = parse_lock(lock.read_text(encoding="utf-8"))[name]
    pins = hashlib.sha256("".join(jar.sha256 for jar in jars).encode()).hexdigest()[:12]
    folder = cache_root() / "jars" / f"{name}-{pins}"
    if not _wrong_jars(folder, jars):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        resolved = Path(scratch, "resolved")
        resolved.mkdir()
        _resolve(name, jars, resolved)
        if wrong := _wrong_jars(resolved, jars):
            raise JarsUnavailable(
                f"These {name} jars are missing or differ from the checksums in jars.lock: {', '.join(wrong)}. "
                "Nothing was kept; look at what your Maven or Ivy settings resolve them to."
            )
        shutil.rmtree(folder, ignore_errors=True)
        # Another process may have filled the same folder meanwhile: the pins are equal, so either copy will do.
        with suppress(OSError):
            resolved.rename(folder)
    if wrong := _wrong_jars(folder, jars):
        raise JarsUnavailable(f"{folder} could not be filled: {', '.join(wrong)} are missing.")
    return folder


def cache_root() -> Path:
    """WEIR_CACHE, else `weir` in the user's cache folder: never in the repository, so clones share it."""
    if chosen := os.environ.get("WEIR_CACHE"):
        return Path(chosen).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir"


def _wrong_jars(folder: Path, jars: Sequence[Jar]) -> list[str]:
    """Names of jars that are missing, changed, or do not belong in the folder."""
    present = {file.name for file in folder.glob("*.jar")} if folder.is_dir() else set()
    wrong = present - {jar.file_name for jar in jars}
    for jar in jars:
        file = folder / jar.file_name
        if jar.file_name not in present or _digest_of(file) != jar.sha256:
            wrong.add(jar.file_name)
    return sorted(wrong)


def _digest_of(file: Path) -> str:
    state = file.stat()
    return _digest(file, state.st_ino, state.st_size, state.st_mtime_ns)


@cache
def _digest(file: Path, *_state: int) -> str:
    """Once per process as long as the file is the same: a start asks for the same folders several times."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _resolve(name: JarSet, jars: Sequence[Jar], target: Path) -> None:
    maven = shutil.which("mvn")
    tool = "Maven" if maven else "Ivy"
    console = Console(stderr=True)
    task = f"Fetching {len(jars)} {name} jars with {tool}"
    with console.status(f"{task} …") as status:
        if not console.is_terminal:
            console.print(f"{task} …")
        command = _maven_command(maven, jars, target) if maven else _ivy_command(jars, target)
        _run(command, target.parent, lambda jar: status.update(f"{task}: {jar}"), tool)
    console.print(f"Fetched {len(jars)} {name} jars.")


def _maven_command(maven: str, jars: Sequence[Jar], target: Path) -> list[str]:
    pom = target.parent / "pom.xml"
    pom.write_text(_pom(jars), encoding="utf-8")
    return [
        maven,
        "--batch-mode",
        f"--file={pom}",
        "dependency:copy-dependencies",
        f"-DoutputDirectory={target}",
        "-DexcludeTransitive=true",
    ]


def _pom(jars: Sequence[Jar]) -> str:
    dependencies = "\n".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for jar in jars
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>weir</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><dependencies>\n{dependencies}\n</dependencies></project>\n"
    )


def _ivy_command(jars: Sequence[Jar], target: Path) -> list[str]:
    module = target.parent / "ivy.xml"
    module.write_text(_ivy_module(jars), encoding="utf-8")
    settings = os.environ.get("WEIR_IVY_SETTINGS") or Path.home() / ".ivy2" / "ivysettings.xml"
    return [
        str(find_java()),
        "-jar",
        str(_ivy_jar()),
        *(["-settings", str(settings)] if Path(settings).is_file() else []),
        "-ivy",
        str(module),
        "-retrieve",
        f"{target}/[artifact]-[revision].[ext]",
    ]


def _ivy_jar() -> Path:
    """Apache Ivy as it ships inside pyspark. Raises `JarsUnavailable` without it."""
    spec = find_spec("pyspark")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(location, "jars").glob("ivy-*.jar")):
            return jar
    raise JarsUnavailable("There is no `mvn` on PATH and no Ivy inside pyspark: install Maven, or run `make setup`.")


def _ivy_module(jars: Sequence[Jar]) -> str:
    dependencies = "\n".join(
        f"<dependency org={quoteattr(jar.group)} name={quoteattr(jar.artifact)} rev={quoteattr(jar.version)} "
        'conf="default->master" transitive="false"/>'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="weir" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>\n{dependencies}\n'
        "</dependencies></ivy-module>\n"
    )


def _run(command: Sequence[str], folder: Path, report: Report, tool: str) -> None:
    """Run the tool, report each jar it downloads, and raise `JarsUnavailable` with its last lines if it fails."""
    log: list[str] = []
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            log.append(line.rstrip())
            if found := DOWNLOADED_JAR.match(line):
                report(found[1])
    if process.returncode != 0:
        last_lines = "\n".join(log[-15:])
        raise JarsUnavailable(f"{tool} could not fetch the jars (exit code {process.returncode}):\n{last_lines}")


def main(names: Sequence[str]) -> int:
    """Fill the folders of these sets, or of all without a name; 0 when they are there."""
    try:
        for name in map(JarSet, names) if names else JarSet:
            print(f"{name}: {jar_folder(name)}")
    except CannotRun as unavailable:
        print(unavailable, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
