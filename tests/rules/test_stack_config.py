"""The file of `weir up --config`: contracts are read from the files it names, and refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.main import app
from jobs.config_files import validated
from jobs.ingestion.config import IngestionConfig
from jobs.stack import load_stack_config
from tests.corpus.contracts import completions_with

GPU = completions_with(
    gpu_seconds={"type": "number", "minimum": 1e-6, "x-weir-column": "gpu_seconds"},
    tier={"enum": ["spot", "on demand", None], "x-weir-column": "tier"},
)


def stack_file(folder: Path, content: Any) -> Path:
    file = folder / "stack.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def test_contracts_are_read_from_files_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/gpu.json").write_text(json.dumps(GPU))
    content = {
        "contracts": ["own/gpu.json"],
        "jobs": {"ingestion": {"topic": "t"}, "joins": {"waiting_memory_mib": 600}},
    }
    config = load_stack_config(stack_file(tmp_path, content))
    assert config.jobs.ingestion.contracts == (GPU,)
    assert (config.jobs.ingestion.topic, config.jobs.joins.waiting_memory_mib) == ("t", 600)
    completion = config.jobs.ingestion.contracts_in_force()["ai.inference.completion.v1"]
    assert [field.column for field in completion.fields if field.column in ("gpu_seconds", "tier")] == [
        "gpu_seconds",
        "tier",
    ]


def test_a_job_reads_the_contracts_back_from_the_file_that_the_laptop_writes_for_it(tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text(json.dumps(GPU))
    config = load_stack_config(stack_file(tmp_path, {"contracts": ["gpu.json"]})).jobs.ingestion
    written = tmp_path / "ingestion.yaml"
    written.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
    read = validated(IngestionConfig, written)
    assert read == config
    assert read.contracts_in_force() == config.contracts_in_force()


@pytest.mark.parametrize("jobs", [None, {}, {"ingestion": None}])
def test_contracts_need_no_configuration_of_jobs(tmp_path: Path, jobs: Any) -> None:
    (tmp_path / "gpu.json").write_text(json.dumps(GPU))
    config = load_stack_config(stack_file(tmp_path, {"contracts": ["gpu.json"], "jobs": jobs}))
    assert len(config.jobs.ingestion.contracts) == 1


REFUSED: dict[str, tuple[Any, str | None, str]] = {
    "no list": ({"contracts": "gpu.json"}, None, "contracts: this is a list of JSON Schema files"),
    "documents": ({"contracts": [GPU]}, None, "contracts: this is a list of JSON Schema files, relative to this one"),
    "no file": ({"contracts": ["gpu.json"]}, None, "gpu.json cannot be read: No such file or directory"),
    "no JSON": ({"contracts": ["gpu.json"]}, "{", "gpu.json is no JSON: Expecting property name"),
    "a key twice": ({"contracts": ["gpu.json"]}, '{"$id": "a", "$id": "b"}', "is no JSON: the key $id occurs twice"),
    "no number": ({"contracts": ["gpu.json"]}, '{"maximum": NaN}', "is no JSON: NaN is no number"),
    "no UTF-8": ({"contracts": ["gpu.json"]}, "\udcff", "gpu.json is no JSON: 'utf-8' codec can't decode"),
    "no object": ({"contracts": ["gpu.json"]}, "[]", "gpu.json holds list; a contract is one JSON object"),
    "no contract": (
        {"contracts": ["gpu.json"]},
        '{"$id": "gpu.v1", "x-weir-family": "usage"}',
        (
            "gpu.json: contract gpu.v1: x-weir-family is one of request, completion, both, quantity, heartbeat, "
            "reversal; it is 'usage'"
        ),
    ),
    "the same twice": ({"contracts": ["gpu.json", "gpu.json"]}, json.dumps(GPU), "there are two documents with this"),
    "both": (
        {"contracts": ["gpu.json"], "jobs": {"ingestion": {"contracts": []}}},
        json.dumps(GPU),
        "contracts and jobs.ingestion.contracts are both given; leave one out",
    ),
    "wrong jobs beside": (
        {"contracts": ["gpu.json"], "jobs": [1]},
        json.dumps(GPU),
        "jobs: must be an object with fields",
    ),
    "wrong ingestion beside": (
        {"contracts": ["gpu.json"], "jobs": {"ingestion": 3}},
        json.dumps(GPU),
        "jobs.ingestion is 3: must be an object with fields",
    ),
    "an unknown key": ({"contracts": [], "contract": []}, None, "contract is not a known field"),
}


@pytest.mark.parametrize(("content", "text", "sentence"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_contract_is_refused_before_the_stack_starts(
    tmp_path: Path, content: Any, text: str | None, sentence: str
) -> None:
    if text is not None:
        (tmp_path / "gpu.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    config = stack_file(tmp_path, content)
    answer = CliRunner().invoke(app, ["up", "--config", str(config), "--data-dir", str(tmp_path / "data")])
    assert answer.exit_code == 2
    assert sentence in answer.stderr
    assert str(tmp_path) in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_of_two_conflicting_files_the_second_is_named(tmp_path: Path) -> None:
    other = {**GPU, "$id": "ai.inference.completion.v2", "allOf": [{"$ref": "weir:ai.inference.completion.v2"}]}
    other["properties"] = {"data": {"properties": {"gpu_seconds": {"type": "integer", "x-weir-column": "gpus"}}}}
    (tmp_path / "a.json").write_text(json.dumps(GPU))
    (tmp_path / "b.json").write_text(json.dumps(other))
    with pytest.raises(
        ValueError, match=r"b\.json: /data/gpu_seconds is decimal in contract .*v1, and integer in .*v2"
    ):
        load_stack_config(stack_file(tmp_path, {"contracts": ["a.json", "b.json"]}))


KNOBS: dict[str, tuple[dict[str, Any], str]] = {
    "a timeout alone": (
        {"joins": {"completion_timeout_seconds": 90}},
        (
            "joins.completion_timeout_seconds is 90, but must be at least 120: twice "
            "ingestion.max_clock_ahead_seconds, which is 60 where it is not given. Raise this, or lower that"
        ),
    ),
    "a timeout of one model": (
        {"joins": {"completion_timeouts": {"fast": 90}}},
        "joins.completion_timeouts.fast is 90, but must be at least 120",
    ),
    "a clock alone": (
        {"ingestion": {"max_clock_ahead_seconds": 300}, "joins": {"completion_timeout_seconds": 400}},
        (
            "ingestion.max_clock_ahead_seconds is 300, but must be at most half of the shortest of "
            "joins.completion_timeout_seconds and joins.completion_timeouts: joins.completion_timeout_seconds is 400"
        ),
    ),
    "a long timeout alone": (
        {"joins": {"completion_timeout_seconds": 1_200}},
        (
            "joins.completion_timeout_seconds is 1200, but must be at most billing.grace_seconds, which is 900 "
            "where it is not given"
        ),
    ),
    "a long timeout of one model": (
        {"joins": {"completion_timeouts": {"slow": 1_200}}},
        "joins.completion_timeouts.slow is 1200, but must be at most billing.grace_seconds",
    ),
    "a grace": (
        {"billing": {"grace_seconds": 300}},
        (
            "billing.grace_seconds is 300, but must be at least the longest of joins.completion_timeout_seconds and "
            "joins.completion_timeouts: joins.completion_timeout_seconds is 600"
        ),
    ),
    "a silence alone": (
        {"ingestion": {"source_silent_after_seconds": 90_000}},
        (
            "source_silent_after_seconds is 90000, but must be less than source_retired_after_seconds, which is 86400 "
            "where it is not given"
        ),
    ),
    "a retirement alone": (
        {"ingestion": {"source_retired_after_seconds": 900}},
        "source_retired_after_seconds is 900, but must be greater than source_silent_after_seconds, which is 900",
    ),
}


@pytest.mark.parametrize(("jobs", "sentence"), KNOBS.values(), ids=KNOBS)
def test_of_two_conflicting_values_the_given_one_is_named_first(
    tmp_path: Path, jobs: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match="but must be") as refusal:
        load_stack_config(stack_file(tmp_path, {"jobs": jobs}))
    assert f": {sentence}" in str(refusal.value)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (
            {"events": [{"topic": "events"}, {"topic": "gateway", "format": "cloudevents"}]},
            "leave out `format`: ingestion recognizes the form of each record",
        ),
        ({"topic": ["events", "gateway"]}, r"list several as `events: \[{topic: NAME}, …\]`"),
    ],
)
def test_several_topics_of_events_in_another_form_are_refused_with_what_to_do(
    tmp_path: Path, written: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_stack_config(stack_file(tmp_path, {"jobs": {"ingestion": written}}))
    several = {"events": [{"topic": "events"}, {"topic": "gateway"}]}
    listed = load_stack_config(stack_file(tmp_path, {"jobs": {"ingestion": several}}))
    assert [entry.topic for entry in listed.jobs.ingestion.events] == ["events", "gateway"]
    one = load_stack_config(stack_file(tmp_path, {"jobs": {"ingestion": {"topic": "gateway"}}}))
    assert one.jobs.ingestion.topic == "gateway"
