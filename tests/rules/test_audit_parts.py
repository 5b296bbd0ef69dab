"""An audit uses the cores that it has, on however many executors, and no fewer parts than every Spark session here."""

from __future__ import annotations

import pytest

from jobs.audit.application import parts_at_once
from jobs.runtime.spark import SHUFFLE_PARTITIONS


@pytest.mark.parametrize(
    ("settings", "known_cores", "parts"),
    [
        ({}, 1, SHUFFLE_PARTITIONS),
        ({}, 8, 8),
        ({"spark.executor.instances": "4", "spark.executor.cores": "3"}, 2, 12),
        ({"spark.executor.instances": "4"}, 2, 4),
        ({"spark.executor.instances": "1", "spark.executor.cores": "1"}, 4, 4),
    ],
)
def test_there_is_a_part_for_each_core_also_of_executors_that_are_not_there_yet(
    settings: dict[str, str], known_cores: int, parts: int
) -> None:
    assert parts_at_once(settings, known_cores) == parts
