"""A supervised program: started again when it ends, ever more slowly, and never beside what its predecessor left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from deployment.errors import CannotRun
from deployment.processes import ProcessId, kill_session
from deployment.stack import Process, State
from laptop.programs import Program
from laptop.supervised import MAX_LOG_BYTES, Supervised, last_log_line

Make = Callable[..., Supervised]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Make]:
    """Supervise a shell script; what still runs after the test is killed."""
    made: list[Supervised] = []

    def make(script: str, *, ready: bool = True, command: Callable[[], Sequence[str]] | None = None) -> Supervised:
        program = Program("test", command or (lambda: ["/bin/sh", "-c", script]), lambda: ready)
        made.append(Supervised(program, "s1", tmp_path / "logs" / "test.log", tmp_path))
        return made[-1]

    yield make
    for one in made:
        if one.record.process is not None:
            kill_session(one.record.process, "s1")


def until(one: Supervised, holds: Callable[[Process], bool], now: float = 0.0) -> Process:
    """Step at the given time until the record is as wanted."""
    deadline = time.monotonic() + 120
    while not holds(one.record):
        one.step(now)
        assert time.monotonic() < deadline, one.record
        time.sleep(0.01)
    return one.record


def test_it_runs_once_it_is_ready(supervise: Make) -> None:
    one = supervise("sleep 60")
    assert until(one, lambda record: record.state is State.RUNNING).restarts == 0
    assert one.record.process is not None
    assert one.record.process.is_running


def test_only_its_owner_reads_its_log_and_the_copy_of_it_also_where_an_earlier_release_made_them(
    supervise: Make, tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "test.log"
    log.parent.mkdir()
    for file in (log, log.with_suffix(".log.1")):
        file.write_bytes(bytes(MAX_LOG_BYTES + 1))
        file.chmod(0o644)
    until(supervise("sleep 60"), lambda record: record.state is State.RUNNING)
    assert log.stat().st_size == 0
    assert [file.stat().st_mode & 0o777 for file in (log, log.with_suffix(".log.1"))] == [0o600, 0o600]


def test_it_is_not_running_before_it_is_ready(supervise: Make) -> None:
    one = supervise("sleep 60", ready=False)
    for _ in range(5):
        one.step(0.0)
    assert one.record.state is State.STARTING


def test_how_and_why_it_ended_is_shown(supervise: Make) -> None:
    record = until(
        supervise("echo first; echo 'refused: because' >&2; exit 3"), lambda record: record.state is State.RESTARTING
    )
    assert (record.exit_status, record.message, record.restarts) == (3, "refused: because", 1)


def test_the_log_of_a_program_that_never_ends_is_bounded(supervise: Make, tmp_path: Path) -> None:
    log, go = tmp_path / "logs" / "test.log", tmp_path / "go"
    fill = f"head -c {MAX_LOG_BYTES} /dev/zero"
    one = supervise(f"{fill}; echo over; while [ ! -e {go} ]; do sleep 0.01; done; echo new; sleep 60")
    until(one, lambda _: log.with_suffix(".log.1").exists())
    go.touch()
    until(one, lambda _: last_log_line(log) == "new")
    assert log.read_text() == "new\n"
    assert log.with_suffix(".log.1").stat().st_size == MAX_LOG_BYTES + len("over\n")


def test_even_a_success_is_started_again_after_the_pause(supervise: Make) -> None:
    one = supervise("exit 0")
    until(one, lambda record: record.restarts == 1, now=100.0)
    assert one.record.process is None
    one.step(100.9)
    assert one.record.process is None
    one.step(101.0)
    assert one.record.process is not None


def test_pauses_grow_while_it_keeps_failing(supervise: Make) -> None:
    one = supervise("exit 1")
    until(one, lambda record: record.restarts == 1, now=0.0)
    until(one, lambda record: record.restarts == 2, now=1.0)
    one.step(2.9)
    assert one.record.process is None
    until(one, lambda record: record.restarts == 3, now=3.0)


def test_what_its_predecessor_left_is_killed_first(supervise: Make, tmp_path: Path) -> None:
    # The subshell keeps the session but not the parent, as a JVM does when its Python is killed.
    one = supervise(f"(sleep 60 & echo $! > {tmp_path}/orphan); exit 1")
    until(one, lambda record: record.state is State.RESTARTING)
    assert ProcessId.of(int((tmp_path / "orphan").read_text())) is None


def test_an_obstacle_before_the_start_is_retried_too(supervise: Make) -> None:
    def obstacle() -> Sequence[str]:
        raise CannotRun("install Java")

    one = supervise("", command=obstacle)
    one.step(0.0)
    assert (one.record.state, one.record.message, one.record.exit_status) == (State.RESTARTING, "install Java", None)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", None),
        ("one\ntwo\n\n", "two"),
        ("\x1b[31mred\x1b[0m\n", "red"),
        ('{"event": "refused to go on", "reason": "the topic is another one"}\n', "the topic is another one"),
        ('{"event": "crashed"}\n', "crashed"),
        ("[1, 2]\n", "[1, 2]"),
        ("12\n", "12"),
    ],
)
def test_the_last_log_line_is_the_last_one_with_text(tmp_path: Path, log: str, words: str | None) -> None:
    (tmp_path / "x.log").write_text(log)
    assert last_log_line(tmp_path / "x.log") == words


def test_without_a_log_there_are_no_last_words(tmp_path: Path) -> None:
    assert last_log_line(tmp_path / "x.log") is None
