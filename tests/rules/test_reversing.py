"""`weir usage reverse`: the event that it sends, and what it refuses before it asks anybody."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli.main import app
from cli.reversing import event_of
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.config_groups import Reversal
from metering.contracts.reversals import METER, QUANTITY, REASON
from tests.corpus.documents import RECEIVED_AT
from tests.pipelines.ingestion import rows_of

CONFIG = IngestionConfig(reversal=Reversal(sources=("desk",)))
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
QUANTITIES = st.decimals("0.000001", "99999999999.999999", places=6)


@given(NAMES, NAMES, NAMES, st.none() | st.tuples(NAMES, st.none() | QUANTITIES))
def test_the_event_has_the_requested_quantity_to_the_last_digit(
    account: str, request_id: str, reason: str, part: tuple[str, Decimal | None] | None
) -> None:
    meter, quantity = part or (None, None)
    said: dict[str, Any] = {"id": "i", "source": "desk", "account": account, "request_id": request_id}
    [row] = rows_of([event_of({**said, "meter": meter, "quantity": quantity, "reason": reason}, RECEIVED_AT)], CONFIG)
    assert row["reason"] is None, row["violation"]
    assert (row["account"], row["request_id"], row[REASON], row[METER]) == (account, request_id, reason, meter)
    assert row[QUANTITY] == quantity
    assert row["event_time"] == RECEIVED_AT == datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--quantity", "3"], "add --meter"),
        (["--meter", "m", "--quantity", "0"], "not a number above 0"),
        (["--meter", "m", "--quantity", "1e-7"], "not a number above 0"),
        (["--meter", "m", "--quantity", "NaN"], "not a number above 0"),
        (["--meter", "m", "--quantity", "many"], "not a number above 0"),
    ],
)
def test_a_quantity_that_cannot_be_taken_back_is_refused(options: list[str], said: str) -> None:
    answer = CliRunner().invoke(app, ["usage", "reverse", "r", "--reason", "why", *options], env={"COLUMNS": "200"})
    assert answer.exit_code == 2
    assert said in answer.stderr
