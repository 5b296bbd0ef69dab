"""The pinned jars: every pin is checked, and nothing but the pinned content is ever given out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from laptop import jars
from laptop.jars import JarSet, JarsUnavailable, jar_folder, parse_lock


def lock_line(content: bytes, artifact: str = "alpha") -> str:
    return f"connectors org.example:{artifact}:1.0 {hashlib.sha256(content).hexdigest()}\n"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock with one jar whose content is `jar`."""
    lock = tmp_path / "jars.lock"
    lock.write_text(lock_line(b"jar"))
    return lock


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("WEIR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What Maven or Ivy would fetch; emptied one by one."""
    contents: list[bytes] = []

    def resolve(_name: JarSet, pins: Sequence[jars.Jar], target: Path) -> None:
        (target / pins[0].file_name).write_bytes(contents.pop(0))

    monkeypatch.setattr(jars, "_resolve", resolve)
    return contents


def test_the_committed_lock_pins_every_set() -> None:
    sets = parse_lock(jars.LOCK.read_text())
    names = {name: {jar.file_name for jar in found} for name, found in sets.items()}
    assert "spark-sql-kafka-0-10_2.13-4.2.0.jar" in names[JarSet.CONNECTORS]
    assert "kafka_2.13-4.3.1.jar" in names[JarSet.BROKER]
    assert "debezium-connector-postgres-3.7.0.Final.jar" in names[JarSet.CONNECT]
    assert all(len(found) == len(names[name]) for name, found in sets.items()), "two jars with one file name"


@pytest.mark.parametrize(
    "line",
    ["connectors a:b:1", "connectors a:b 00", "other a:b:1 " + "0" * 64, "broker a:b:1 " + "0" * 63, "broker  a:b:1 "],
)
def test_a_line_that_is_no_pin_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_lock(f"# a comment\n{line}\n")


def test_a_full_cache_is_not_resolved_again(cache: Path, lock: Path, resolved: list[bytes]) -> None:
    resolved.append(b"jar")
    folder = jar_folder(JarSet.CONNECTORS, lock)
    assert folder.is_relative_to(cache)
    assert [file.read_bytes() for file in folder.iterdir()] == [b"jar"]
    assert jar_folder(JarSet.CONNECTORS, lock) == folder


@pytest.mark.usefixtures("cache")
def test_a_damaged_or_foreign_jar_is_replaced(lock: Path, resolved: list[bytes]) -> None:
    resolved.extend([b"jar", b"jar", b"jar"])
    folder = jar_folder(JarSet.CONNECTORS, lock)
    (folder / "alpha-1.0.jar").write_bytes(b"cut")
    assert (jar_folder(JarSet.CONNECTORS, lock) / "alpha-1.0.jar").read_bytes() == b"jar"
    (folder / "stranger-1.0.jar").write_bytes(b"jar")
    assert [file.name for file in jar_folder(JarSet.CONNECTORS, lock).iterdir()] == ["alpha-1.0.jar"]


def test_other_content_than_pinned_is_refused_and_not_kept(cache: Path, lock: Path, resolved: list[bytes]) -> None:
    resolved.append(b"another jar")
    with pytest.raises(JarsUnavailable, match=r"alpha-1\.0\.jar"):
        jar_folder(JarSet.CONNECTORS, lock)
    assert list((cache / "jars").iterdir()) == []


def test_another_pin_is_another_folder(cache: Path, lock: Path, resolved: list[bytes]) -> None:
    resolved.extend([b"jar", b"newer"])
    before = jar_folder(JarSet.CONNECTORS, lock)
    lock.write_text(lock_line(b"newer"))
    assert jar_folder(JarSet.CONNECTORS, lock) != before
    assert before.exists()
    assert cache.exists()


@pytest.mark.parametrize(
    ("line", "jar"),
    [
        ("Downloading from somewhere: repo/org/example/alpha/1.0/alpha-1.0.jar", "alpha-1.0.jar"),
        ("[INFO] Downloading from somewhere: repo/a-1.0.jar (3 kB)", "a-1.0.jar"),
        ("downloading repo/org/example/a-1.0.jar ...", "a-1.0.jar"),
    ],
)
def test_each_tool_says_which_jar_it_downloads(line: str, jar: str) -> None:
    found = jars.DOWNLOADED_JAR.match(line)
    assert found is not None
    assert found[1] == jar


def test_the_sets_that_are_named_are_fetched_and_no_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[JarSet] = []
    monkeypatch.setattr(jars, "jar_folder", fetched.append)
    assert jars.main(["connectors", "connect"]) == jars.main([]) == 0
    assert fetched == [JarSet.CONNECTORS, JarSet.CONNECT, *JarSet]
    assert "connect: " in capsys.readouterr().out
