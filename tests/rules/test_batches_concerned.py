"""Whether a batch that the driver has read concerns its job at all."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from jobs.analytics.pipeline import JOB as ANALYTICS
from jobs.runtime.job import PostgresJob
from jobs.runtime.postgres.sink import _concerns
from jobs.sessionization.pipeline import JOB as SESSIONIZATION
from jobs.streams import SCHEMAS

ROWS: dict[str, dict[str, str | None]] = {
    SESSIONIZATION.name: {"disposition": "accepted", "family": None, "user_id": "u"},
    ANALYTICS.name: {"outcome": "matched"},
}
TYPES = ("ai.inference.request.v1", "source.heartbeat.v1")


@pytest.mark.parametrize("job", [SESSIONIZATION, ANALYTICS], ids=lambda job: job.name)
@pytest.mark.parametrize("is_one", [True, False])
def test_a_batch_concerns_a_job_if_its_condition_holds_for_a_row(job: PostgresJob[Any], *, is_one: bool) -> None:
    """The condition may name a column more than once."""
    wanted = ROWS[job.name] | {"type": TYPES[0]}
    other: dict[str, str | None] = {"disposition": "rejected", "outcome": "unmatched", "type": TYPES[1]}
    schema = SCHEMAS[job.reads]
    rows = pa.Table.from_pylist(
        [{field.name: row.get(field.name) for field in schema} for row in ([other, wanted] if is_one else [other])],
        schema=pa.schema([field.with_nullable(True) for field in schema]),
    )
    assert _concerns(rows, job.concerns) is is_one
