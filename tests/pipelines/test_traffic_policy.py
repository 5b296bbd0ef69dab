"""Traffic is billed by what the applications wrote down when they started: defaults, and timeouts by model."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from cli.traffic import policy_of
from deployment.stack import Deployment
from jobs.billing.config import BillingConfig
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.sessionization.config import SessionizationConfig
from tests.database_rows import progress
from tests.rules.test_traffic_truth import run
from traffic.truth import truth_of


@pytest.mark.parametrize("by_model", [{}, {"aurora-nano": 660, "fjord-max": 110}], ids=["defaults", "by model"])
def test_traffic_with_a_certain_fate_can_be_drawn_for_a_stack(database: str, by_model: dict[str, int]) -> None:
    configs = {
        "ingestion": IngestionConfig(),
        "joins": JoinsConfig(completion_timeouts=by_model),
        "sessionization": SessionizationConfig(),
        "billing": BillingConfig(),
    }
    for job, config in configs.items():
        progress(database, job, None)
        with psycopg.connect(database) as connection:
            row = [Jsonb(config.model_dump(mode="json")), job]
            connection.execute("UPDATE jobs SET config = %s WHERE job = %s", row)
    policy = policy_of(Deployment(postgres_url=database))
    assert [policy.timeout_seconds(model) for model in ("aurora-nano", "fjord-max", "another", None)] == [
        by_model.get("aurora-nano", 600),
        by_model.get("fjord-max", 600),
        600,
        max(600, *by_model.values(), 0),
    ]
    truth = truth_of(run(4, policy=policy))
    assert {"abandoned", "orphaned", "straggler", "late"} <= truth["kinds"].keys()
