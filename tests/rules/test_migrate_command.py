"""`python -m jobs migrate` where nobody has said which database."""

from __future__ import annotations

import pytest

from jobs.__main__ import migrate
from jobs.runtime.errors import ExitStatus


@pytest.mark.parametrize("address", [None, ""])
def test_without_an_address_it_says_what_to_set(
    address: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WEIR_POSTGRES_URL", raising=False)
    if address is not None:
        monkeypatch.setenv("WEIR_POSTGRES_URL", address)
    with pytest.raises(SystemExit) as ended:
        migrate()
    assert ended.value.code == ExitStatus.BAD_CONFIGURATION
    assert capsys.readouterr().err.startswith("WEIR_POSTGRES_URL is not set: ")


def test_a_downgrade_needs_the_tables_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WEIR_POSTGRES_URL", "postgresql://weir@127.0.0.1:1/weir")
    monkeypatch.delenv("WEIR_TABLES", raising=False)
    with pytest.raises(SystemExit) as ended:
        migrate(down_to="0062")
    assert ended.value.code == ExitStatus.BAD_CONFIGURATION
    assert "WEIR_TABLES is not set: " in capsys.readouterr().err
