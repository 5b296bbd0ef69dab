"""What the benchmark sends and reads is what it says: so many events, in pairs, and sums of series."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from bench.__main__ import NEEDS
from bench.application import metric
from bench.events import GATEWAYS, records
from bench.recording import Recording
from bench.report import AIMS, IDLE_AIMS_MS, Line
from bench.work import LOOKS_UP, READS, TWO_VIEWS
from jobs.stack import StackConfig
from jobs.streams import Table
from metering.vocabulary import Job

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_exactly_the_requested_number_of_records_is_made() -> None:
    assert [len(list(records(count, "run", NOW))) for count in (1, 999, 5_000)] == [1, 999, 5_000]


def test_the_same_seed_gives_the_same_records() -> None:
    assert list(records(2_000, "run", NOW)) == list(records(2_000, "run", NOW))


def test_nearly_every_request_has_its_completion_and_a_twentieth_comes_twice() -> None:
    events = [json.loads(record.value) for record in records(40_000, "run", NOW)]
    ids = Counter(event["id"] for event in events)
    requests = {event["data"]["request_id"] for event in events if event["type"].endswith("request.v1")}
    completed = {event["data"]["request_id"] for event in events if event["type"].endswith("completion.v1")}
    assert completed <= requests
    assert len(requests - completed) <= 600
    assert 0.03 < sum(count > 1 for count in ids.values()) / len(ids) < 0.07


def test_every_gateway_numbers_what_it_sends_without_a_hole() -> None:
    numbers: dict[str, list[int]] = {}
    for record in records(20_000, "run", NOW):
        event = json.loads(record.value)
        numbers.setdefault(event["source"], []).append(int(event["sequence"]))
    assert len(numbers) == GATEWAYS
    for sent in numbers.values():
        assert list(dict.fromkeys(sent)) == list(range(max(sent) + 1))


def test_a_user_is_of_one_account() -> None:
    events = [json.loads(record.value) for record in records(20_000, "run", NOW)]
    pairs = {(event["data"]["user_id"], event["subject"]) for event in events if "user_id" in event["data"]}
    assert len(pairs) == len({user for user, _ in pairs})


def test_a_metric_is_the_sum_of_its_series_and_of_no_other() -> None:
    page = '# TYPE batches counter\nbatches{job="a"} 2.0\nbatches{job="b"} 3.0\nbatches_total 40.0\n'
    assert metric(page, "batches") == 5.0
    assert metric(page, "absent") == 0.0


def test_an_aim_is_the_most_that_is_allowed() -> None:
    assert [Line("x", found, 12.0, "s").is_met for found in (11.9, 12.0, 12.1)] == [True, True, False]
    assert Line("x", 99.0, None, "s").is_met


def test_a_recorded_table_grows_again_commit_by_commit(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for first in (1, 3):
        write_deltalake(
            str(source / Table.JOURNAL),
            pa.table({"lsn": [first, first + 1]}),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction("lsn", first + 2)]),
        )
    recording = Recording(source, Table.JOURNAL)
    seen = []
    for version in range(recording.versions):
        position = recording.copy(version, target)
        grown = DeltaTable(str(target / Table.JOURNAL))
        seen.append((position, sorted(grown.to_pyarrow_table()["lsn"].to_pylist())))
    assert seen == [(3, [1, 2]), (5, [1, 2, 3, 4])]


def test_every_application_but_the_first_is_measured_on_what_another_writes_and_views_read_columns_of_contracts() -> (
    None
):
    assert {*READS} == {*NEEDS} == {*Job} - {Job.INGESTION}
    assert all(writer in NEEDS[name] for name, (_, writer) in (*READS.items(), *LOOKS_UP.items()))
    assert {*AIMS} == {*IDLE_AIMS_MS} == {*Job}
    views = StackConfig.model_validate({"jobs": {"analytics": {"views": TWO_VIEWS}}}).jobs.analytics.declared_views
    assert len(views) == len(TWO_VIEWS) == 2
