"""`weir rules` prints what a person can read: of contracts their types, and the whole documents for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import rules
from cli.main import app
from cli.output import Row
from deployment.stack import Deployment
from jobs.ingestion.config import IngestionConfig

HELD: Row = {
    "job": "ingestion",
    "table": "journal",
    "from_lsn": 1,
    "since": datetime(2026, 1, 1, tzinfo=UTC),
    "rules": IngestionConfig().deciding,
}
OLDER: Row = {**HELD, "rules": {"accept_past_seconds": 60}}


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*_: Any) -> Iterator[Row]:
        yield from (OLDER, HELD)

    monkeypatch.setattr(rules, "rule_rows", rows)
    monkeypatch.setattr(rules, "read_only", lambda _: nullcontext())
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: Deployment())


@pytest.mark.usefixtures("listed")
def test_the_table_has_the_types_of_contracts_only() -> None:
    answer = CliRunner().invoke(app, ["rules"])
    assert answer.exit_code == 0
    assert all(name in answer.stdout for name in IngestionConfig().documents)
    assert "x-weir-column" not in answer.stdout
    assert '{"accept_past_seconds": 60}' in answer.stdout


@pytest.mark.usefixtures("listed")
def test_json_has_each_document_as_it_held() -> None:
    answer = CliRunner().invoke(app, ["rules", "--format", "json"])
    assert [row["rules"] for row in json.loads(answer.stdout)] == [OLDER["rules"], HELD["rules"]]
