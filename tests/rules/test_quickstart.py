"""The quickstart's servers say what they lack instead of starting without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from laptop.quickstart import main, wait_for_schema


@pytest.mark.parametrize(
    ("server", "variable"), [("broker", "WEIR_ADVERTISED"), ("database", "WEIR_DATABASE_PASSWORD")]
)
def test_a_missing_variable_is_named(
    server: str, variable: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([server], {"WEIR_DATA": str(tmp_path)}) == 1
    assert capsys.readouterr().err.startswith(f"The environment variable {variable} is not set; ")


def test_an_unknown_word_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kafka"], {}) == 2
    assert "broker|database|connect|captured|wait" in capsys.readouterr().err


def test_a_worker_that_waits_for_its_database_prints_once_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """It waits for ever: a wrong address, or a role that may not sign in, would leave its log empty."""
    attempts = iter(range(3))

    def pause(_: float) -> None:
        if next(attempts, None) is None:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        wait_for_schema("postgresql://weir:hunter2@127.0.0.1:1/weir", pause)
    printed = capsys.readouterr().err
    assert printed.count("The database at 127.0.0.1:1/weir does not answer") == 1
    assert "hunter2" not in printed
