"""What declarations cost: the same traffic with 4 meters, with 20 of which 4 or 20 are reported, with a dimension, and
with rules of what is billed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.parts import Setting, running_parts
from bench.work import Marks, Measured, Plan, Tell, measure_ingestion, measure_reader
from jobs.stack import StackConfig, load_stack_config
from metering.vocabulary import Job

FURTHER = tuple(f"units_{number:02d}" for number in range(16))
"""Meters beside the default four, each the sum of a column of its own."""
CONCERNED = (Job.INGESTION, Job.JOINS, Job.BILLING)
"""Sessions count no meters."""


CONFIG_OF_RULES: Mapping[str, Any] = {
    "price_attributes": ["operation", {"context": {"of": "input_tokens", "bands": {"short": "1500", "long": None}}}],
    "meters": {
        "requests": {"unit": "request", "count": "outcomes", "where": {"status": ["completed"], "region": ["eu-1"]}},
        "answers": {"unit": "answer", "count": "outcomes", "once_per": {"column": "content_hash", "within": "PT1H"}},
        "users": {"unit": "user", "unique": "user_id", "period": "month"},
        **{name: {"unit": "token", "sum": name} for name in ("input_tokens", "output_tokens")},
        "cached_tokens": {"unit": "token", "sum": "cached_tokens", "within": "input_tokens"},
    },
    "jobs": {"ingestion": {"reversal": {"sources": ["desk"]}}},
}
"""A file of `weir up --config`."""
CONDITIONS = (
    {"operation": "chat"},
    {"context": "long"},
    {"operation": "chat", "context": "long"},
)


class Case(StrEnum):
    """How many meters are declared and how many a completion reports, or which dimension goes with an outcome."""

    FOUR = "4 meters declared and reported"
    DECLARED = "20 meters declared, 4 reported"
    REPORTED = "20 meters declared and reported"
    DIMENSION = "one dimension"
    """`api_key_id`: a hundred keys an account."""
    RULES = "conditions of prices, once_per, unique and reversals"
    """What `CONFIG_OF_RULES` declares, and prices of input under each of `CONDITIONS`."""


@dataclass(frozen=True)
class DeclaredMeasured:
    """The applications that know meters and dimensions, by case."""

    applications: Mapping[Case, list[Measured]]

    def cpu_seconds_per_million(self, case: Case) -> float:
        """Of all of them together."""
        return sum(job.cpu_seconds_per_million for job in self.applications[case])

    def of(self, case: Case, job: Job) -> float:
        """CPU-seconds of one of them per million events."""
        return next(found.cpu_seconds_per_million for found in self.applications[case] if found.job == job)

    def times_four(self, case: Case) -> float:
        """How much more that is than with four meters."""
        return self.cpu_seconds_per_million(case) / self.cpu_seconds_per_million(Case.FOUR)


def measure_declared(folder: Path, plan: Plan, tell: Tell) -> DeclaredMeasured:
    """Measure the three applications once for each case, in turn."""
    return DeclaredMeasured({case: _applications(folder / case.name.lower(), plan, case, tell) for case in Case})


def _applications(folder: Path, plan: Plan, case: Case, tell: Tell) -> list[Measured]:
    folder.mkdir(parents=True)
    found: list[Measured] = []
    marks: Marks | None = None
    with running_parts(folder, _setting(folder, case)) as parts:
        for job in CONCERNED:

            def tell_job(text: str, job: Job = job) -> None:
                tell(f"{case}, {job}: {text}")

            if marks is None:
                measured, marks = measure_ingestion(folder, parts, plan, tell_job)
            else:
                measured, marks = measure_reader(job, folder, parts, plan, marks=marks, tell=tell_job)
            tell_job(f"{measured.cpu_seconds_per_million:.1f} CPU-s/M")
            found.append(measured)
    return found


def _setting(folder: Path, case: Case) -> Setting:
    if case is Case.FOUR:
        return Setting()
    if case is Case.DIMENSION:
        return Setting(load_stack_config(_write(folder, {"dimensions": ["api_key_id"]})))
    if case is Case.RULES:
        config = load_stack_config(_write(folder, CONFIG_OF_RULES))
        return Setting(config, priced=("answers", "users"), conditions=CONDITIONS)
    return Setting(load_stack_config(_declare(folder)), FURTHER, FURTHER if case is Case.REPORTED else ())


def _declare(folder: Path) -> Path:
    """The file of `weir up --config` that declares all twenty, beside the contract that has their columns."""
    shipped = "ai.inference.completion.v1"
    columns = {name: {"type": "number", "minimum": 0, "x-weir-column": name} for name in FURTHER}
    contract: dict[str, Any] = {
        "$id": shipped,
        "allOf": [{"$ref": f"weir:{shipped}"}],
        "properties": {"data": {"properties": columns}},
    }
    (folder / "units.json").write_text(json.dumps(contract))
    own = {name: meter.model_dump(mode="json") for name, meter in StackConfig().jobs.joins.meters.items()}
    meters = {**own, **{name: {"unit": "unit", "sum": name} for name in FURTHER}}
    return _write(folder, {"contracts": ["units.json"], "meters": meters})


def _write(folder: Path, config: Mapping[str, Any]) -> Path:
    file = folder / "weir.json"
    file.write_text(json.dumps(config))
    return file
