"""The quickstart's servers say what they lack instead of starting without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from laptop.quickstart import main


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
