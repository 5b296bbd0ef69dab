"""What a change of contracts does to events that came before it, on a real broker and a real journal."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from jobs.ingestion import fingerprints, validator
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.pipeline import RECORD
from jobs.runtime.effective_rules import read_history
from jobs.runtime.errors import Refused
from jobs.runtime.kafka.marks import WITH_HEADERS, marked
from jobs.streams import Table
from tests.corpus.contracts import GPU, completions_with
from tests.streaming.topics import Topic, batch, ingestion, journal

WITH_GPU = (GPU,)
TRAINING: dict[str, Any] = {
    "$id": "com.example.training",
    "x-weir-family": "both",
    "properties": {
        "data": {
            "type": "object",
            "properties": {
                "run": {"type": "string", "x-weir-column": "request_id"},
                "model": {"type": "string", "x-weir-column": "model"},
            },
        }
    },
}


def completion(name: str, **data: Any) -> bytes:
    envelope = {"specversion": "1.0", "type": "ai.inference.completion.v1", "source": "s", "id": name, "subject": "a"}
    told = {"request_id": name, "status": "completed", "input_tokens": 5, **data}
    return json.dumps({**envelope, "time": TIME, "data": told}).encode()


TIME = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def send(topic: Topic, *values: bytes) -> None:
    for value in values:
        topic.producer.produce(topic.name, value, b"a", partition=0)
    assert topic.producer.flush(30) == 0


def dispositions(tables: Path) -> list[tuple[str, str, int | None]]:
    return journal(tables).select("id", "disposition", "first_lsn").rows()


@pytest.mark.long
def test_a_repeat_is_known_though_its_first_was_read_by_another_contract(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    send(topic, completion("same", gpu_seconds=1.5), completion("other", gpu_seconds=1.5))
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        sink.process(batch(spark, topic))
    firsts = dict(journal(tmp_path).select("id", "lsn").rows())
    send(topic, completion("same", gpu_seconds=1.5, note="new"), completion("other", gpu_seconds=2.5))
    config = IngestionConfig(contracts=WITH_GPU)
    with ingestion(spark, broker, database, tmp_path, topic.name, contracts=WITH_GPU) as sink:
        sink.process(batch(spark, topic, config=config))
    assert dispositions(tmp_path)[2:] == [
        ("same", "duplicate", firsts["same"]),
        ("other", "conflict", firsts["other"]),
    ]


def test_a_repeat_is_known_though_its_first_has_a_digest_of_an_earlier_version(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def validated(config: IngestionConfig) -> DataFrame:
        """In this process, where the digest can be another."""
        records = spark.read.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic.name)
        read = marked(records.options(**WITH_HEADERS).load()).select(*RECORD)
        return spark.createDataFrame(config.validator().validate(read.toArrow()))

    topic = Topic.make(broker)
    send(topic, completion("same"), completion("other"))
    with monkeypatch.context() as earlier:
        now = fingerprints.contents
        said = IngestionConfig().deciding
        earlier.setattr(IngestionConfig, "deciding", {**said, "digest": said["digest"] - 1})
        earlier.setattr(validator, "contents", lambda events, contract: now(events, contract) // 2)
        with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
            sink.process(validated(IngestionConfig()))
    send(topic, completion("same"), completion("other", input_tokens=6))
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        sink.process(validated(IngestionConfig()))
    assert [row[:2] for row in dispositions(tmp_path)[2:]] == [("same", "duplicate"), ("other", "conflict")]


def test_records_before_their_contract_make_no_duplicates_of_records_after_it(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    event = json.loads(completion("run-1"))
    training = json.dumps({**event, "type": "com.example.training", "data": {"run": "r", "model": "m"}}).encode()
    send(topic, training, training)
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        sink.process(batch(spark, topic))
    send(topic, training, training)
    config = IngestionConfig(contracts=(TRAINING,))
    for _ in range(2):
        with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(TRAINING,)) as sink:
            sink.process(batch(spark, topic, config=config))
    rows = journal(tmp_path).select("disposition", "family", "request_id").rows()
    assert rows == [
        ("accepted", None, None),
        ("accepted", None, None),
        ("accepted", "both", "r"),
        ("duplicate", "both", "r"),
    ]


def test_a_declared_column_is_in_the_journal_and_stays_when_its_contract_goes(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    for number, contracts in enumerate([(), WITH_GPU, (), WITH_GPU]):
        send(topic, completion(f"e{number}", gpu_seconds=0.000001, images=number))
        config = IngestionConfig(contracts=contracts)
        with ingestion(spark, broker, database, tmp_path, topic.name, contracts=contracts) as sink:
            sink.process(batch(spark, topic, config=config))
    found = journal(tmp_path).select("id", "gpu_seconds", "images").rows()
    smallest = Decimal("0.000001")
    assert found == [("e0", None, None), ("e1", smallest, 1), ("e2", None, None), ("e3", smallest, 3)]
    history, _ = read_history(DeltaTable(f"{tmp_path}/{Table.JOURNAL}"))
    said = [sorted(name for name in held.rules["contracts"] if name.startswith("weir:")) for held in history]
    assert said == [[], ["weir:ai.inference.completion.v1"], [], ["weir:ai.inference.completion.v1"]]
    # Whoever validates these rows again finds the effective contract: the document, and what it builds on.
    assert history[1].rules["contracts"]["ai.inference.completion.v1"] == GPU


def test_a_column_keeps_its_type(spark: SparkSession, broker: str, database: str, tmp_path: Path) -> None:
    topic = Topic.make(broker)
    send(topic, completion("first", images=3))
    with ingestion(spark, broker, database, tmp_path, topic.name, contracts=WITH_GPU) as sink:
        sink.process(batch(spark, topic, config=IngestionConfig(contracts=WITH_GPU)))
    another = completions_with(images={"type": "number", "minimum": 0, "x-weir-column": "images"})
    with (
        pytest.raises(Refused, match=r"column images as decimal128\(17, 6\), but the journal has it as int64"),
        ingestion(spark, broker, database, tmp_path, topic.name, contracts=(another,)),
    ):
        pass
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        sink.process(batch(spark, topic))
    assert journal(tmp_path)["images"].to_list() == [3]
