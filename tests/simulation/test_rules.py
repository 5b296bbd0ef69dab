"""What stands in for ingestion reads all that the steps of a history report: what it drops, no oracle misses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulation.declared import OTHER_TYPE
from tests.simulation.rules import classified
from tests.simulation.simulate import emptied
from tests.simulation.steps import KINDS, Send
from tests.simulation.world import World


@pytest.mark.parametrize("kind", [*KINDS, "other"])
def test_the_journal_of_a_history_has_all_that_its_events_report(histories: str, kind: str, tmp_path: Path) -> None:
    world = World(tmp_path, emptied(histories), 0, 1)
    try:
        sent = Send(0, kind, 0, 1, 0, 7, 0, 0, 5, 0.5, "cancelled", "partial", "eu", cached=True).value(world)
    finally:
        world.close()
    assert sent is not None
    stamp = {"timestamp": world.clock.now(), "timestampType": 1, "replay_mark": None, "reception_mark": None}
    record = {"topic": "events", "partition": 0, "offset": 0, "key": None, "value": sent, **stamp}
    row = classified(record, {OTHER_TYPE})
    reported = json.loads(sent)["data"]
    assert {name: str(row.get(name)) for name in reported} == {name: str(value) for name, value in reported.items()}
