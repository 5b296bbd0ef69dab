"""The example for Vector, by Vector's own language: each call of a log is a valid event, and again the same one.

Vector itself is no package. What its Kafka sink adds is as documented: the event as JSON, keyed by the subject.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import validated
from jobs.streams import EVENTS_TOPIC
from tests.packages import python_with
from tests.pages import ROOT

VRL = "pyvrl==0.0.2"
PROGRAM = Path(__file__).with_name("vrl_process.py")
TEXT = (ROOT / "examples" / "vector.yaml").read_text("utf-8")
SHOWN = yaml.safe_load(TEXT)
(LINE,) = (line.removeprefix("# ") for line in TEXT.splitlines() if line.startswith("# {"))
CALL = json.loads(LINE)


def test_the_example_waits_for_kafka_and_writes_where_ingestion_reads() -> None:
    sink = SHOWN["sinks"]["weir"]
    assert (sink["topic"], sink["key_field"], sink["encoding"]) == (EVENTS_TOPIC, "subject", {"codec": "json"})
    assert (sink["acknowledgements"], sink["librdkafka_options"]) == ({"enabled": True}, {"acks": "all"})
    assert SHOWN["transforms"]["events"]["reroute_dropped"], "a line that cannot be read is not lost"


@pytest.mark.long
def test_each_call_of_a_log_is_one_valid_event(tmp_path_factory: pytest.TempPathFactory) -> None:
    calls = [
        CALL,
        CALL,
        {
            **CALL,
            "id": "c-2",
            "account": 'Zoë "&" Co',
            "started_at": "2026-11-29T10:00:00+02:00",
            "output_tokens": None,
        },
        {**CALL, "id": "c-3", "status": "error", "input_tokens": 10**10},
    ]
    unreadable = ["", "{", "[]", json.dumps({**CALL, "id": 7}), json.dumps({**CALL, "started_at": "today"})]
    given = {
        "source": SHOWN["transforms"]["events"]["source"],
        "lines": [*(json.dumps(call) for call in calls), *unreadable],
    }
    python = python_with(tmp_path_factory.mktemp("vrl"), VRL)
    ran = subprocess.run(
        [python, str(PROGRAM)], input=json.dumps(given), capture_output=True, text=True, check=True, timeout=100
    )
    *events, _, _, _, _, _ = found = json.loads(ran.stdout)
    assert found[len(calls) :] == [None] * len(unreadable)
    rows = validated([json.dumps(event).encode() for event in events], IngestionConfig().validator(), 1 << 20)
    assert rows["reason"].to_list() == [None] * len(calls), rows["violation"].to_list()
    assert rows["account"].to_list() == [CALL["account"], CALL["account"], calls[2]["account"], CALL["account"]]
    assert rows["input_tokens"].to_list() == [call["input_tokens"] for call in calls]
    assert rows["output_tokens"].to_list() == [call["output_tokens"] for call in calls]
    assert rows["status"].to_list() == ["completed", "completed", "completed", "error"]
    assert rows.select("identity", "content_digest").n_unique() == 3, "the same line again is the same event"
