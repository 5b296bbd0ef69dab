"""The programs of a stack: what is outside is not started, and addresses stay what they were."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deployment.processes import ProcessId
from deployment.stack import KAFKA_VARIABLE, POSTGRES_VARIABLE, Process, Stack, State
from jobs.runtime.kafka.access import KafkaAccess
from jobs.runtime.postgres.address import in_schema
from laptop import broker, class_archive, connect
from laptop.folders import Folders
from laptop.java import archive_of, find_java
from laptop.launch import AlreadyRunning, archives_missing, locked, not_ready
from laptop.programs import applications, choose_addresses, postgres_url, servers
from laptop.server_archives import archiving
from laptop.stopping import FIRST_TO_LAST


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    for variable in (KAFKA_VARIABLE, POSTGRES_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    return Folders(tmp_path)


def test_a_stack_brings_its_own_broker_and_database(folders: Folders) -> None:
    addresses = choose_addresses(folders)
    assert [program.name for program in servers(folders, addresses)] == ["broker", "database"]


def test_what_is_outside_is_used_and_not_started(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KAFKA_VARIABLE, "kafka.example:9092")
    monkeypatch.setenv(POSTGRES_VARIABLE, "postgresql://postgres.example/weir")
    addresses = choose_addresses(folders)
    assert servers(folders, addresses) == []
    assert addresses.kafka_bootstrap == "kafka.example:9092"
    assert postgres_url(folders, addresses) == in_schema("postgresql://postgres.example/weir")


def test_addresses_are_the_same_after_a_restart_and_all_different(folders: Folders) -> None:
    first = choose_addresses(folders)
    assert choose_addresses(folders) == first
    assert first.broker is not None
    ports = [
        first.broker.clients,
        first.broker.controller,
        first.database_port,
        first.dashboard_port,
        *first.metrics.values(),
    ]
    assert len(set(ports)) == len(ports)


def test_a_folder_has_at_most_one_supervisor(folders: Folders) -> None:
    stops_it = re.escape(f"`weir down --data-dir {folders.data}` stops it")
    with locked(folders), pytest.raises(AlreadyRunning, match=stops_it), locked(folders, patience_seconds=0):
        pass
    with locked(folders):
        pass


def test_without_a_class_archive_java_is_started_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "spark.jsa"
    monkeypatch.setattr(class_archive, "archive_file", lambda: archive)
    assert "SharedArchiveFile" not in class_archive.submit_arguments()["PYSPARK_SUBMIT_ARGS"]
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in class_archive.submit_arguments()["PYSPARK_SUBMIT_ARGS"]


def test_servers_start_with_the_archives_that_were_made_of_their_classes(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(folders.data))
    for name in ("spark", "broker", "connect"):
        monkeypatch.setattr(f"laptop.launch.{'connector' if name == 'spark' else name}_jars", lambda: folders.data)
    commands: dict[str, Callable[[], list[str]]] = {
        "broker": lambda: broker.server_command(folders.broker, folders.data),
        "connect": lambda: connect.server_command(
            folders.connect, folders.data, connect.Worker(KafkaAccess(bootstrap="kafka:9092"), 1)
        ),
    }
    assert "(spark, broker, connect)" in archives_missing()
    for name, command in commands.items():
        plain, archive = command(), archive_of(name, folders.data)
        java = plain.index(str(find_java()))
        training = archiving(plain, archive)
        assert training[: java + 2] == [*plain[: java + 1], f"-XX:ArchiveClassesAtExit={archive}"]
        assert training[-1] == plain[-1]
        archive.parent.mkdir(exist_ok=True)
        archive.touch()
        assert command()[: java + 2] == [*plain[: java + 1], f"-XX:SharedArchiveFile={archive}"]
        assert [word for word in command() if word in plain] == plain
    assert "(spark)" in archives_missing()
    archive_of("spark", folders.data).touch()
    assert archives_missing() == ""


def test_only_a_java_that_drivers_leave_idle_is_not_optimized(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laptop.programs.capture.password", lambda _: "secret")
    folders.database.mkdir(parents=True)
    programs = applications(folders, choose_addresses(folders), "postgresql://127.0.0.1/weir")
    arguments = {program.name: program.environment.get(class_archive.SUBMIT_VARIABLE, "") for program in programs}
    assert {name for name, given in arguments.items() if "TieredStopAtLevel=1" in given} == {"joins", "billing"}


def test_every_program_is_stopped_in_a_defined_order(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laptop.programs.capture.password", lambda _: "secret")
    folders.database.mkdir(parents=True)
    addresses = choose_addresses(folders)
    programs = [*servers(folders, addresses), *applications(folders, addresses, "postgresql://127.0.0.1/weir")]
    assert {program.name for program in programs} <= {name for group in FIRST_TO_LAST for name in group}


def test_a_stack_that_is_not_up_in_time_says_how_to_give_it_longer(folders: Folders) -> None:
    slow = Process("joins", State.STARTING)
    stack = Stack(id="1", data_dir=folders.data, supervisor=ProcessId(1, "now"), processes=(slow,))
    report = not_ready(stack, folders, 180.0)
    assert report.startswith("--- joins: starting")
    assert f"run `weir up --data-dir {folders.data} --timeout 540`" in report.splitlines()[-1]
