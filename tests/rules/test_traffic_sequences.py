"""Sequence numbers of the traffic are what the bytes say, and the truth of them is computed anew from the bytes."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

from hypothesis import given

from tests.rules.test_traffic_truth import EXAMPLES, large, run, seeds, sizes
from traffic.sequences import OF_GATEWAY, runs_of
from traffic.truth import truth_of


def gateway(source: str) -> str:
    return source.split("/", maxsplit=1)[0]


@EXAMPLES
@given(seeds, sizes)
def test_oracle_arrivals_follow_from_the_accepted_events(seed: int, records: int) -> None:
    traffic = run(seed, records)
    heard: dict[tuple[str, str], set[int]] = defaultdict(set)
    for record in traffic.records:
        if record.disposition == "accepted":
            event = json.loads(record.value)
            numbers = {int(event["sequence"])} if "sequence" in event else set()
            heard[event["source"], event.get("sourceepoch", "")] |= numbers
    told = {
        (source["source"], source["source_epoch"]): {n for a, b in source["arrived"] for n in range(a, b + 1)}
        for source in truth_of(traffic)["sources"]
    }
    assert told == heard


@EXAMPLES
@given(seeds)
def test_a_repeat_says_the_number_of_its_first(seed: int) -> None:
    said: dict[tuple[str, str], tuple[object, object]] = {}
    for record in run(seed).records:
        if record.source is not None and record.id is not None:
            event = json.loads(record.value)
            number = event.get("sequence"), event.get("sourceepoch")
            assert said.setdefault((record.source, record.id), number) == number


def test_sequence_numbers_are_lost_doubled_late_and_restarted_and_never_overcounted() -> None:
    traffic, truth = large()
    of_epoch: dict[tuple[str, str], list[int]] = defaultdict(list)
    for record in traffic.records:
        if record.disposition == "accepted" and record.source is not None and record.sequence is not None:
            of_epoch[record.source, record.source_epoch].append(record.sequence)
    assert {gateway(source) for source, _ in of_epoch} == set(OF_GATEWAY)
    for name, numbering in OF_GATEWAY.items():
        epochs = [numbers for (source, _), numbers in of_epoch.items() if gateway(source) == name]
        assert len(epochs) == numbering.restarts + 1
        assert sum(len(numbers) - len(set(numbers)) for numbers in epochs) > 10
        assert sum(after < before for numbers in epochs for before, after in pairwise(numbers)) > 10
        holes = [len(runs_of(numbers)) - 1 for numbers in epochs]
        assert sum(holes) > 20
        assert max(holes) < 500, "a source with a thousand holes counts as one that numbers nothing"
    assert {s["source_epoch"] for s in truth["sources"] if gateway(s["source"]) == "gateway-us"} == {
        "boot-1",
        "boot-2",
        "boot-3",
        "boot-4",
    }


def test_rejected_events_have_numbers_that_are_missing() -> None:
    # One small run in a hundred rejects none that has a number.
    records = [record for seed in range(5) for record in run(seed).records]
    assert any(record.disposition == "rejected" and record.sequence is not None for record in records)
