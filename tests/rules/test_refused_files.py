"""A file that cannot be read is refused alike by every command: one sentence, exit status 2, nothing done."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app

MONTH = ("--from", "2026-10-01T00:00:00Z", "--to", "2026-11-01T00:00:00Z")
READERS = {
    "produce": ("produce", "FILE"),
    "contracts check": ("contracts", "check", "FILE"),
    "contracts check --contract": ("contracts", "check", "-", "--contract", "FILE"),
    "contracts list --contract": ("contracts", "list", "--contract", "FILE"),
    "catalog apply": ("catalog", "apply", "FILE"),
    "compare": ("compare", "FILE"),
    "up --config": ("up", "--config", "FILE"),
    "up --alertmanager-config": ("up", "--alertmanager-config", "FILE"),
    "rebuild --config": ("rebuild", "billing", "--config", "FILE"),
    "close --config": ("close", "2026-10", "--config", "FILE"),
    "what-if --config": ("what-if", *MONTH, "--into", "tried", "--config", "FILE"),
    "what-if --catalog": ("what-if", *MONTH, "--into", "tried", "--catalog", "FILE"),
    "backfill": ("backfill", "FILE"),
    "dead-letters redrive --edit": ("dead-letters", "redrive", "--reason", "invalid", "--edit", "FILE"),
}


@pytest.mark.parametrize("words", READERS.values(), ids=READERS)
def test_a_missing_file_is_refused_with_status_2_before_anything_is_done(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    missing = str(tmp_path / "absent.json")
    command = [missing if word == "FILE" else word for word in words]
    on_stack = [] if words[0] == "contracts" else ["--data-dir", str(tmp_path / "data")]
    answer = CliRunner().invoke(app, [*command, *on_stack], input="")
    assert answer.exit_code == 2, answer.output
    assert f"{missing} cannot be read: No such file or directory" in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert [*tmp_path.iterdir()] == []
