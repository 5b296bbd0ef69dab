"""The order of a stack's start: what is early works beside the servers, and uses them only when they can be used."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from cli.demo import CONFIG, keep_demo_config
from cli.main import app
from deployment.errors import CannotRun
from deployment.processes import ProcessId
from deployment.stack import Stack, State, read_stack
from jobs.runtime.run import until_there
from jobs.stack import StackConfig, load_stack_config
from laptop import supervisor as starting
from laptop.folders import Folders
from laptop.launch import keep_config
from laptop.programs import Program
from laptop.supervisor import Supervisor
from metering.vocabulary import Job
from tests.waiting import wait_until

NOWHERE = SimpleNamespace(
    kafka_bootstrap="kafka:9092",
    database_port=None,
    dashboard_url="",
    api_url="",
    prometheus_url="",
    alertmanager_url="",
    metrics_urls={},
)


class Rehearsal:
    """A supervisor of shell scripts: a server, an early program that waits as drivers do, and one that comes later."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folders = Folders(folder)
        self.stopping = threading.Event()
        self.migrating, self.may_end = threading.Event(), threading.Event()
        self.told: list[str] = []
        self.refusal: CannotRun | None = None
        server = Program("database", self._script("server"), self._has("server"), is_early=True)
        early = Program(
            Job.INGESTION,
            self._script("early", "while [ ! -e usable ]; do sleep 0.01; done; touch used"),
            self._has("used"),
            is_early=True,
            on_usable=lambda: self.told.append(f"usable: {self.folders.usable.exists()}"),
        )
        late = Program("connect", self._script("late"), self._has("late"))
        for name, answer in {
            "choose_addresses": NOWHERE,
            "servers": [server],
            "postgres_url": "postgresql://nowhere/weir",
            "applications": [late, early],
            "ensure_topics": None,
            "webhook_sender": [],
        }.items():
            monkeypatch.setattr(starting, name, lambda *_, _answer=answer, **__: _answer)
        monkeypatch.setattr(Supervisor, "_migrate", lambda *_, **__: self._migrate())
        this = ProcessId.of(os.getpid())
        assert this is not None
        self.supervisor = Supervisor(Stack("rehearsed", folder, this), self.stopping)

    def made(self, name: str) -> bool:
        """Whether a script has begun, or has come to the end of its waiting."""
        return (self.folders.data / name).exists()

    def _script(self, name: str, then: str = ":") -> Callable[[], list[str]]:
        return lambda: ["/bin/sh", "-c", f"touch {name}; {then}; exec sleep 60"]

    def _has(self, name: str) -> Callable[[], bool]:
        return lambda: self.made(name)

    def _migrate(self) -> None:
        self.migrating.set()
        assert self.may_end.wait(60)
        if self.refusal is not None:
            raise self.refusal

    @contextmanager
    def running(self) -> Iterator[list[BaseException]]:
        """In a thread, ended after the block; the errors that it ended with."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                self.supervisor.run()
            except CannotRun as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield errors
        finally:
            self.stopping.set()
            self.may_end.set()
            thread.join(60)
        assert not thread.is_alive()

    def processes(self) -> dict[str, ProcessId]:
        """Those that are written down as running or starting."""
        stack = read_stack(self.folders.data)
        return {one.name: one.process for one in stack.processes if one.process} if stack else {}


@pytest.fixture
def rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    return Rehearsal(tmp_path, monkeypatch)


def test_what_is_early_starts_beside_the_servers_and_uses_them_after_the_migration(rehearsal: Rehearsal) -> None:
    rehearsal.folders.usable.touch()  # as a supervisor that was killed leaves it
    with rehearsal.running():
        assert rehearsal.migrating.wait(60)
        wait_until(lambda: rehearsal.made("early"), "the early program", every_seconds=0.01)
        assert not rehearsal.folders.usable.exists()
        assert not rehearsal.made("late")
        assert rehearsal.told == []
        rehearsal.may_end.set()
        wait_until(lambda: bool((stack := read_stack(rehearsal.folders.data)) and stack.is_ready), "all running")
        assert rehearsal.told == ["usable: False"], "who compares with what was before is told before it changes"
        stack = read_stack(rehearsal.folders.data)
        assert stack is not None
        assert [(one.name, one.state) for one in stack.processes] == [
            ("database", State.RUNNING),
            ("connect", State.RUNNING),
            (Job.INGESTION, State.RUNNING),
        ]
        started = rehearsal.processes()
    assert [one.is_running for one in started.values()] == [False] * 3
    assert not rehearsal.folders.usable.exists()


def test_a_migration_that_fails_ends_what_has_started_and_starts_nothing_more(rehearsal: Rehearsal) -> None:
    rehearsal.refusal = CannotRun("the database could not be migrated")
    with rehearsal.running() as errors:
        assert rehearsal.migrating.wait(60)
        wait_until(lambda: rehearsal.made("early"), "the early program", every_seconds=0.01)
        started = rehearsal.processes()
        assert started.keys() == {"database", Job.INGESTION}
        rehearsal.may_end.set()
        wait_until(lambda: bool(errors), "the refusal", every_seconds=0.01)
    assert errors == [rehearsal.refusal]
    assert not any(one.is_running for one in started.values())
    assert not rehearsal.made("used")
    assert not rehearsal.made("late")
    assert read_stack(rehearsal.folders.data) is None


def test_who_is_asked_to_stop_during_the_migration_ends_what_has_started(rehearsal: Rehearsal) -> None:
    with rehearsal.running() as errors:
        assert rehearsal.migrating.wait(60)
        wait_until(lambda: rehearsal.made("early"), "the early program", every_seconds=0.01)
        started = rehearsal.processes()
    assert errors == []
    assert not any(one.is_running for one in started.values())
    assert not rehearsal.made("used")
    assert not rehearsal.made("late")


def test_a_driver_waits_for_its_file_until_it_is_there_or_it_is_asked_to_stop(tmp_path: Path) -> None:
    stopping, file = threading.Event(), tmp_path / "usable"
    assert until_there(None, stopping)
    threading.Timer(0.1, file.touch).start()
    assert until_there(file, stopping)
    threading.Timer(0.1, stopping.set).start()
    assert not until_there(tmp_path / "never", stopping)


def test_without_a_file_each_application_is_configured_as_by_an_empty_one(tmp_path: Path) -> None:
    for name, config in {"none": None, "empty": StackConfig()}.items():
        folders = Folders(tmp_path / name)
        folders.config(Job.ANALYTICS).parent.mkdir(parents=True)
        folders.config(Job.ANALYTICS).write_text("views: {}")
        keep_config(folders, config)
    written = [
        {file.name: file.read_text() for file in (tmp_path / name / "config").iterdir()} for name in ("none", "empty")
    ]
    assert written[0] == written[1]
    assert len(written[0]) > 0


def test_up_goes_on_as_the_demo_was_configured_unless_a_file_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default joins refused for ever: the demo's prices depend on attributes that it did not list."""
    started = []

    def start(_folders: Folders, config: StackConfig | None, *_: object, **_options: object) -> None:
        started.append(config)
        raise typer.Exit(3)

    monkeypatch.setattr("laptop.launch.Launch.start", start)
    demo, own = StackConfig.model_validate(CONFIG), tmp_path / "own.yaml"
    own.write_text("jobs: {billing: {grace_seconds: 900}}")
    keep_demo_config(Folders(tmp_path), demo)
    for options in ((), ("--config", str(own)), ("--data-dir", str(tmp_path / "other"))):
        given = options if "--data-dir" in options else (*options, "--data-dir", str(tmp_path))
        assert CliRunner().invoke(app, ["up", *given]).exit_code == 3
    assert started == [demo, load_stack_config(own), None]


def test_a_driver_loads_neither_alembic_nor_the_configurations_of_others() -> None:
    """Four start at the same time on few cores."""
    others = "sqlalchemy, alembic, jobs.stack, jobs.ingestion.config, jobs.analytics.config"
    program = (
        "import sys, jobs.__main__, jobs.runtime.run, jobs.billing.pipeline\n"
        f"print([name for name in {others.split(', ')!r} if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
