"""stack.json: what is written is read back, by its owner only, and a dead stack is never taken for a running one."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from deployment.processes import ProcessId
from deployment.stack import (
    Process,
    Stack,
    StackNotRunning,
    State,
    read_stack,
    remove_stack,
    running_stack,
    write_stack,
)

DEAD = ProcessId(2**22 + 1, "never")


def this_process() -> ProcessId:
    identity = ProcessId.of(os.getpid())
    assert identity is not None
    return identity


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return Stack(
        id="s1",
        data_dir=tmp_path,
        supervisor=this_process(),
        kafka_bootstrap="127.0.0.1:9092",
        postgres_url="postgresql://weir:secret@127.0.0.1:5432/weir",
        tables=str(tmp_path / "tables"),
        dashboard_url="http://127.0.0.1:8501",
        metrics_urls={"joins": "http://127.0.0.1:9100/metrics"},
        is_ready=True,
        processes=(
            Process("broker", State.RUNNING, this_process()),
            Process("joins", State.RESTARTING, None, 3, -9, "crashed"),
        ),
    )


def test_what_is_written_is_read_back(stack: Stack) -> None:
    write_stack(stack)
    assert read_stack(stack.data_dir) == stack
    assert running_stack(stack.data_dir) == stack


def test_only_the_owner_may_read_the_password(stack: Stack) -> None:
    write_stack(stack)
    assert stat.S_IMODE((stack.data_dir / "stack.json").stat().st_mode) == 0o600


def test_the_password_is_not_in_what_python_prints(stack: Stack) -> None:
    assert "secret" not in repr(stack)


def test_a_dead_supervisor_is_no_running_stack(stack: Stack) -> None:
    write_stack(replace(stack, supervisor=DEAD))
    with pytest.raises(StackNotRunning, match="weir up"):
        running_stack(stack.data_dir)


def test_a_reused_pid_is_no_running_stack(stack: Stack) -> None:
    write_stack(replace(stack, supervisor=ProcessId(os.getpid(), "another start")))
    with pytest.raises(StackNotRunning):
        running_stack(stack.data_dir)


def test_a_stack_without_its_database_is_still_starting(stack: Stack) -> None:
    write_stack(replace(stack, postgres_url=""))
    with pytest.raises(StackNotRunning, match="still starting"):
        running_stack(stack.data_dir)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"id": 1}', "null"])
def test_a_damaged_file_is_no_stack(tmp_path: Path, content: str) -> None:
    (tmp_path / "stack.json").write_text(content)
    assert read_stack(tmp_path) is None


def test_removing_twice_is_no_error(stack: Stack) -> None:
    write_stack(stack)
    remove_stack(stack.data_dir)
    remove_stack(stack.data_dir)
    assert read_stack(stack.data_dir) is None


def test_a_process_is_found_by_its_name(stack: Stack) -> None:
    assert stack.process("joins").restarts == 3
    with pytest.raises(KeyError):
        stack.process("nobody")
