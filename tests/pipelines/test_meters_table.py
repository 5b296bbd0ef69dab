"""What each meter means is kept for good: declared, declared no more, declared again, and never as something else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from cli.meters import COLUMNS, meter_rows
from jobs.joins.config import JoinsConfig
from jobs.runtime.errors import Refused
from jobs.runtime.postgres.meters_table import declare
from metering.meters import DEFAULT, Declaration, Meter
from tests.database_rows import write

GPU = Declaration("gpu_seconds", "second", "gpu_seconds")


def kept(connection: psycopg.Connection[Any]) -> dict[str, tuple[str, str | None, bool]]:
    rows = connection.execute("SELECT meter, unit, sums, is_declared FROM meters").fetchall()
    return {meter: tuple(said) for meter, *said in rows}


def test_a_new_database_has_the_meters_that_are_declared_by_default(connection: psycopg.Connection[Any]) -> None:
    assert kept(connection) == {meter.name: (meter.unit, meter.sums, True) for meter in DEFAULT}
    declare(connection, DEFAULT)
    assert kept(connection) == {meter.name: (meter.unit, meter.sums, True) for meter in DEFAULT}


def test_a_meter_that_is_left_out_keeps_its_meaning_and_may_come_back(connection: psycopg.Connection[Any]) -> None:
    declare(connection, [*DEFAULT, GPU])
    declare(connection, DEFAULT[:1])
    assert {meter for meter, (_, _, is_declared) in kept(connection).items() if is_declared} == {Meter.REQUESTS}
    assert kept(connection)["gpu_seconds"] == ("second", "gpu_seconds", False)
    declare(connection, [*DEFAULT, GPU])
    assert all(is_declared for _, _, is_declared in kept(connection).values())


def test_a_job_that_does_not_know_all_meters_removes_none(connection: psycopg.Connection[Any]) -> None:
    declare(connection, [*DEFAULT, GPU])
    declare(connection, DEFAULT, are_all=False)
    assert all(is_declared for _, _, is_declared in kept(connection).values())
    declare(connection, [*DEFAULT[1:], GPU])
    declare(connection, DEFAULT[:1], are_all=False)
    assert kept(connection)[Meter.REQUESTS] == ("request", None, True), "what it has is declared"
    assert kept(connection).keys() == {*Meter, "gpu_seconds"}


@pytest.mark.parametrize(
    "other",
    [
        Declaration("gpu_seconds", "hour", "gpu_seconds"),
        Declaration("gpu_seconds", "second", "gpu_hours"),
        Declaration("gpu_seconds", "second"),
    ],
    ids=["unit", "column", "outcomes"],
)
@pytest.mark.parametrize("is_declared", [True, False])
def test_a_name_that_means_something_else_is_refused_and_changes_nothing(
    connection: psycopg.Connection[Any], other: Declaration, *, is_declared: bool
) -> None:
    declare(connection, [*DEFAULT, GPU])
    declare(connection, [*DEFAULT, GPU] if is_declared else DEFAULT)
    before = kept(connection)
    with pytest.raises(Refused, match=r"meter gpu_seconds is declared as .* but it was the sum of gpu_seconds in the"):
        declare(connection, [DEFAULT[0], other])
    assert kept(connection) == before


def test_what_a_total_leaves_out_may_change(connection: psycopg.Connection[Any]) -> None:
    declare(connection, [*DEFAULT, Declaration("reasoning_tokens", "token", "reasoning_tokens")])
    declare(
        connection, [*DEFAULT, Declaration("reasoning_tokens", "token", "reasoning_tokens", within="output_tokens")]
    )
    [(within,)] = connection.execute("SELECT within FROM meters WHERE meter = 'reasoning_tokens'").fetchall()
    assert within == "output_tokens"


def test_they_are_listed_with_what_they_count(connection: psycopg.Connection[Any]) -> None:
    declare(connection, [*DEFAULT[:2], GPU])
    connection.commit()
    with psycopg.connect(connection.info.dsn, password=connection.info.password, row_factory=dict_row) as database:
        rows = list(meter_rows(database))
    assert all(tuple(row) == COLUMNS for row in rows)
    assert [(row["meter"], row["counts"], row["declared"]) for row in rows] == [
        ("gpu_seconds", "gpu_seconds", True),
        ("input_tokens", "input_tokens", True),
        ("requests", "outcomes", True),
        ("cached_tokens", "cached_tokens", False),
        ("output_tokens", "output_tokens", False),
    ]


def test_a_name_keeps_its_meaning_whichever_outcomes_it_looks_at(connection: psycopg.Connection[Any]) -> None:
    before = kept(connection)
    for status in ("completed", "error"):
        requests = Declaration("requests", "request", where=(("status", (status,)),))
        declare(connection, [requests, *[meter for meter in DEFAULT if meter.name != "requests"]])
        assert kept(connection) == before


def explanations(connection: psycopg.Connection[Any]) -> dict[str, str]:
    connection.commit()
    with psycopg.connect(connection.info.dsn, password=connection.info.password, row_factory=dict_row) as database:
        return {str(row["meter"]): str(row["explanation"]) for row in meter_rows(database)}


def test_meters_are_explained_before_the_first_start_of_joins(connection: psycopg.Connection[Any]) -> None:
    found = explanations(connection)
    assert set(found) == {meter.name for meter in DEFAULT}
    assert found["requests"] == "requests counts each outcome as 1 request, priced per request by plan and model."
    assert "UnmeteredUsage" in found["output_tokens"]
    left_out = "units within it that cached_tokens bills at its own price are left out of what input_tokens bills"
    assert {name for name, sentence in found.items() if left_out in sentence} == {"input_tokens"}
    declare(connection, [meter for meter in DEFAULT if meter.name != "cached_tokens"])
    assert left_out not in explanations(connection)["input_tokens"], "what is declared no more bills nothing"


def test_expected_meters_are_those_that_joins_was_started_with(connection: psycopg.Connection[Any]) -> None:
    gpu = {"unit": "second", "sum": "gpu_seconds", "expected": True}
    output = {"unit": "token", "sum": "output_tokens", "expected": False, "where": {"status": ["completed"]}}
    config = JoinsConfig.model_validate({"meters": {"gpu_seconds": gpu, "output_tokens": output}})
    declare(connection, [*config.declared, Declaration("late", "second", "late_seconds")])
    owner = {"job": "joins", "epoch": 1, "owner_pid": 1, "state": "running"}
    now = datetime.now(UTC)
    write(
        connection.info.dsn + f" password={connection.info.password}",
        "jobs",
        {**owner, "owner_started_at": now, "started_at": now, "config": Jsonb(config.model_dump(mode="json"))},
    )
    found = explanations(connection)
    assert "raise UnmeteredUsage" in found["gpu_seconds"]
    assert "a request without it adds nothing" in found["output_tokens"]
    assert "adds up output_tokens of each outcome whose status is completed, priced" in found["output_tokens"]
    assert "a request without it adds nothing" in found["late"], "joins does not know it yet"
    assert "it is declared no more" in found["input_tokens"]
