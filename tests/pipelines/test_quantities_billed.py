"""Quantities of no request, from joins to the audit: each is billed once, by itself, whatever comes beside it.

Method: events in any order, some of them accepted twice, audited once or after each; what must stand is added up here.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable

from jobs.explain.files import Files
from jobs.explain.records import Period, Tables
from jobs.streams import Table
from tests.pipelines.hand_made import HOUR, MINUTE, START, HandMade
from tests.pipelines.test_audit_restated import Event, audited, happened, stands, usage
from tests.pipelines.test_reports import reports

NAMES = [f"call-{number}/{kind}" for number in (1, 2) for kind in ("input", "output")]


def quantity(name: str, at: timedelta, tokens: int, **said: Any) -> Event:
    """What a gateway sends of one type of tokens, with the request id that ingestion makes."""
    request_id = "quantity:" + sha256(name.encode()).hexdigest()[:32]
    return "quantity", at, {"id": name, "name": request_id, "output_tokens": tokens, "model": "m", **said}


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("apart", [HOUR, MINUTE], ids=["beyond the timeout", "within it"])
@pytest.mark.parametrize("is_audited_each_time", [False, True], ids=["once", "each time"])
@pytest.mark.parametrize("seed", range(2))
def test_each_quantity_is_billed_once_by_itself(
    seed: int, tmp_path: Path, apart: timedelta, *, is_audited_each_time: bool
) -> None:
    random = Random(seed)
    sent = []
    for number, name in enumerate(NAMES):
        status, source = random.choice([None, "error", "cancelled"]), random.choice([None, "estimated", "partial"])
        at = random.randint(0, 2) * MINUTE
        sent.append(quantity(name, at, 10**number, status=status, usage_source=source))
    again = [event for event in sent if random.random() < 0.5]
    events = [*sent, *again, usage(5 * MINUTE, "error", 7), usage(6 * MINUTE, "completed", 50_000)]
    random.shuffle(events)
    world = HandMade(tmp_path, best_report_bills=True)
    happened(world, events, is_audited_each_time=is_audited_each_time, apart=apart)
    tokens = Counter({6: 50_000})
    for _, at, said in sent:
        tokens[at // MINUTE] += said["output_tokens"]
    must = {("m", minute, "output_tokens"): number for minute, number in tokens.items()}
    assert stands(world) == must | {("m", 6, "requests"): 1}
    assert audited(world, 100 * HOUR) == 0
    rows = DeltaTable(f"{world.tables}/usage").to_pyarrow_table().to_pylist()
    ranked = {row["request_id"] for row in rows if row["cause"] == "restated"}
    assert ranked <= {"r"}
    assert {(row["account"], row["request_id"]) for row in reports(world)} == {("a", "r")}


def test_a_quantity_is_explained_by_the_id_of_its_event_and_by_the_request_id_that_was_made(tmp_path: Path) -> None:
    events = [quantity("call-1/input", MINUTE, 1200), quantity("call-1/output", MINUTE, 300)]
    world = happened(HandMade(tmp_path, best_report_bills=True), events)
    journal, of_usage = (DeltaTable(f"{world.tables}/{name}") for name in (Table.JOURNAL, Table.USAGE))
    tables = Tables(Files.of(journal, Table.JOURNAL), Files.of(of_usage, Table.USAGE), None, 100)
    for name in ("call-1/input", events[0][2]["name"]):
        found = tables.of_id(name, Period(START))
        assert found.usage.select("outcome", "model", "sign").rows() == [("matched", "m", 1)]
        assert found.records.select("id", "request_id").rows() == [("call-1/input", events[0][2]["name"])]
