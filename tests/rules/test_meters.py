"""What a configuration may declare as a meter, what is refused, and that the defaults stand in one place."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.settings.stored_meters import restored, stored
from jobs.stack import load_stack_config
from metering.limits import PLAIN_NAME
from metering.meters import DEFAULT, MAX_METERS, REPORTED_COLUMNS, Meter, totals_of
from tests.pages import row_of

ROOT = Path(__file__).parents[2]
ROOTS = ["metering", "jobs", "catalog", "deployment", "cli", "laptop", "traffic", "monitoring", "dashboard", "charts"]
MEANT = {
    "metering/meters.py",
    # A truth that shares nothing with what it tests.
    "traffic/meters.py",
}
"""Product files that write out what completions report, and must."""
GPU: dict[str, Any] = {
    "$id": "ai.inference.completion.v1",
    "allOf": [{"$ref": "weir:ai.inference.completion.v1"}],
    "properties": {
        "data": {
            "properties": {
                "gpu_seconds": {"type": "number", "minimum": 0, "x-weir-column": "gpu_seconds"},
                "note": {"type": "string", "x-weir-column": "note"},
                "refund": {"type": "number", "x-weir-column": "refund"},
                "deposit": {"type": "integer", "minimum": 5, "x-weir-column": "deposit"},
                "debt": {"type": "integer", "maximum": -1, "x-weir-column": "debt"},
            }
        }
    },
}


def config(**meters: dict[str, Any]) -> IngestionConfig:
    return IngestionConfig.model_validate({"contracts": [GPU], "meters": meters})


def test_the_guide_lists_the_quantities_of_completions() -> None:
    contract = row_of("how-to/send-events.md", "`ai.inference.completion.v1`")
    assert {name for name in REPORTED_COLUMNS if f" {name}?," not in contract} == set()


def test_the_glossary_lists_each_default_meter() -> None:
    assert {meter for meter in Meter if meter not in row_of("explanation/glossary.md", "meter")} == set()


def test_no_other_file_lists_the_meters_again() -> None:
    """A list of two quantities or more, each by name: it forgets the next one. Examples name one at a time, or all."""
    written = re.compile(rf"""["'](?:{"|".join(REPORTED_COLUMNS)})["']""")
    listing = {
        str(path.relative_to(ROOT))
        for root in ROOTS
        for path in (ROOT / root).rglob("*.py")
        # A migration that has landed is never edited.
        if "migrations" not in path.parts and len(set(written.findall(path.read_text()))) > 1
    }
    assert listing - {"traffic/malformed.py", "charts/weir/files/bill_one_event.py"} == MEANT


def test_the_meters_of_the_first_release_are_the_default() -> None:
    assert [meter.name for meter in DEFAULT] == list(Meter)
    assert JoinsConfig().declared == tuple(sorted(DEFAULT, key=lambda meter: meter.name))
    assert all(re.fullmatch(PLAIN_NAME, meter) for meter in Meter)


def test_a_total_counts_no_unit_twice() -> None:
    assert totals_of(DEFAULT)["token"] == (Meter.INPUT_TOKENS, Meter.OUTPUT_TOKENS)
    declared = config(
        gpu_seconds={"unit": "second", "sum": "gpu_seconds"},
        long_seconds={"unit": "second", "sum": "gpu_seconds", "within": "gpu_seconds"},
        answers={"unit": "answer", "count": "outcomes"},
    ).declared
    assert totals_of(declared) == {"answer": ("answers",), "second": ("gpu_seconds",)}


def test_rules_of_quantities_are_read_back_as_stored() -> None:
    kept = json.loads(json.dumps(stored(JoinsConfig().declared)))
    assert stored(restored(kept)) == stored(JoinsConfig().declared)
    assert restored(None) == DEFAULT, "an earlier release kept none"


@pytest.mark.parametrize(
    ("meters", "says"),
    [
        ({}, "at least 1 item"),
        ({f"m{n}": {"unit": "u", "count": "outcomes"} for n in range(MAX_METERS + 1)}, f"at most {MAX_METERS} items"),
        ({"Seconds": {"unit": "second", "count": "outcomes"}}, "pattern"),
        ({"a" * 64: {"unit": "second", "count": "outcomes"}}, "pattern"),
        ({"m": {"unit": "Second", "count": "outcomes"}}, "pattern"),
        ({"m": {"unit": "second"}}, "one of `count: outcomes` and `sum: <column>`"),
        ({"m": {"unit": "second", "count": "outcomes", "sum": "gpu_seconds"}}, "one of `count: outcomes`"),
        ({"m": {"unit": "second", "count": "seconds"}}, "outcomes"),
        ({"m": {"unit": "second", "sum": "latency_ms"}}, "sums latency_ms, which is double"),
        ({"m": {"unit": "second", "sum": "note"}}, "sums note, which is text"),
        ({"m": {"unit": "second", "sum": "seconds"}}, "sums seconds, which is given by no contract of a completion"),
        ({"m": {"unit": "second", "sum": "gpu_seconds", "max_per_event": 0}}, "greater than 0"),
        ({"m": {"unit": "second", "sum": "gpu_seconds", "max_per_event": "1e12"}}, "less than or equal"),
        ({"m": {"unit": "second", "sum": "gpu_seconds", "max_per_event": "0.0000001"}}, "6 decimal places"),
        ({"m": {"unit": "second", "count": "outcomes", "max_per_event": "1"}}, "of a meter that sums"),
        (
            {"m": {"unit": "euro", "sum": "deposit", "max_per_event": 3}},
            "at least 5 and may be at most 3: no event could",
        ),
        ({"m": {"unit": "euro", "sum": "debt"}}, "at least 0 and may be at most -1: no event could report it"),
        ({"m": {"unit": "second", "sum": "gpu_seconds", "within": "m"}}, "must be another meter of the unit second"),
        ({"m": {"unit": "second", "sum": "gpu_seconds", "late_policy": "approve"}}, "'correct', 'drop' or 'hold'"),
        ({"m": {"unit": "second", "sum": "gpu_seconds", "hold": {"seconds": 0}}}, "greater than or equal to 1"),
        ({"m": {"unit": "second", "sum": "gpu_seconds", "hold": {"expires": "approve"}}}, "'drop' or 'correct'"),
        ({"m": {"unit": "second", "sum": "gpu_seconds", "hold": {"above": 1}}}, "Extra inputs"),
        ({"m": {"unit": "second", "sum": "gpu_seconds", "price": 3}}, "Extra inputs"),
    ],
)
def test_an_invalid_meter_is_refused_with_the_allowed_values(meters: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(says)):
        config(**meters)


def test_fifty_meters_are_declared() -> None:
    assert len(config(**{f"m{n}": {"unit": "u", "sum": "gpu_seconds"} for n in range(MAX_METERS)}).declared) == 50


def test_no_event_reports_less_than_nothing_or_more_than_its_limit() -> None:
    limited = config(
        gpu_seconds={"unit": "second", "sum": "gpu_seconds", "max_per_event": "86400"},
        short={"unit": "second", "sum": "gpu_seconds", "max_per_event": 60.5},
        refund={"unit": "euro", "sum": "refund"},
    )
    fields = {field.column: field for field in limited.contracts_in_force()["ai.inference.completion.v1"].fields}
    assert (fields["gpu_seconds"].minimum, fields["gpu_seconds"].maximum) == (Decimal(0), Decimal("60.5"))
    assert fields["refund"].minimum == 0
    own = {
        field.column: field
        for field in config(a={"unit": "a", "count": "outcomes"}).contracts_in_force()[GPU["$id"]].fields
    }
    assert own["refund"].minimum is not None
    assert own["refund"].minimum < 0, "what nobody adds up may be anything"


def test_limits_of_quantities_are_recorded_as_rules() -> None:
    plain = config(gpu_seconds={"unit": "second", "sum": "gpu_seconds"})
    limit = config(gpu_seconds={"unit": "second", "sum": "gpu_seconds", "max_per_event": "86400"})
    assert plain.deciding != limit.deciding
    assert json.loads(json.dumps(limit.deciding))["max_per_event"] == {"gpu_seconds": "86400"}


def test_meters_are_given_once_for_all_applications(tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text(json.dumps(GPU))
    file = tmp_path / "weir.yaml"
    meters = {"gpu_seconds": {"unit": "second", "sum": "gpu_seconds", "late_policy": "drop", "max_per_event": "86400"}}
    file.write_text(json.dumps({"contracts": ["gpu.json"], "meters": meters, "jobs": {"ingestion": {}}}))
    jobs = load_stack_config(file).jobs
    assert {name: tuple(getattr(jobs, name).meters) for name in type(jobs).model_fields} == dict.fromkeys(
        ("ingestion", "sessionization", "joins", "billing", "analytics"), ("gpu_seconds",)
    )
    file.write_text(json.dumps({"meters": meters, "jobs": {"joins": {"meters": meters}}}))
    with pytest.raises(ValueError, match=re.escape("meters and jobs.joins.meters are both given; leave one out")):
        load_stack_config(file)
    file.write_text(json.dumps({"jobs": {"billing": {"meters": {"answers": {"unit": "answer", "count": "outcomes"}}}}}))
    with pytest.raises(ValueError, match="meters are the same for all jobs"):
        load_stack_config(file)


def test_a_configuration_survives_serialization() -> None:
    """A driver reads a file that was written from the model: by `weir up`, and by Helm with its keys in order."""
    given = config(gpu_seconds={"unit": "second", "sum": "gpu_seconds", "max_per_event": "86400.000001"})
    passed = json.loads(json.dumps(given.model_dump(mode="json"), sort_keys=True))
    assert IngestionConfig.model_validate(passed).deciding == given.deciding
