"""Flink SQL: parse, deduplicate, join, sum by minute. Runs in PyFlink's own environment: nothing of ours is imported.

`python flink_sql.py BOOTSTRAP TOPIC STAGE FOLDER JAR`. Says `done` when all that the topic holds is through, and ends
when its input does: who measures it asks for its CPU time between the two.
"""

from __future__ import annotations

import sys
from enum import Enum

from pyflink.common import Configuration  # type: ignore[import-not-found]  # in an environment of its own
from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

EVENTS = """
CREATE TABLE events (
    specversion STRING, `type` STRING, source STRING, id STRING, subject STRING, `sequence` STRING,
    `time` TIMESTAMP_LTZ(3), senttime TIMESTAMP_LTZ(3),
    data ROW<
        request_id STRING, user_id STRING, api_key_id STRING, model STRING, operation STRING, route STRING,
        region STRING, content_hash STRING, status STRING, usage_source STRING, cached BOOLEAN,
        input_tokens BIGINT, output_tokens BIGINT, cached_tokens BIGINT, latency_ms BIGINT
    >,
    arrived AS PROCTIME()
) WITH (
    'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}',
    'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset',
    'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601'
)
"""
ONCE = """
CREATE TEMPORARY VIEW once AS
SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY source, id ORDER BY arrived) AS n FROM events) WHERE n = 1
"""
# A regular join, whose state goes after an hour. One by intervals of event time had used more than 500 CPU-seconds for
# 800,000 events when it was stopped.
JOINED = """
CREATE TEMPORARY VIEW joined AS
SELECT completed.`time`, completed.subject AS account, requested.data.model AS model,
       completed.data.input_tokens, completed.data.output_tokens, completed.data.cached_tokens
FROM (SELECT * FROM once WHERE `type` = 'ai.inference.request.v1') AS requested
JOIN (SELECT * FROM once WHERE `type` = 'ai.inference.completion.v1') AS completed
  ON requested.subject = completed.subject AND requested.data.request_id = completed.data.request_id
"""
NOTHING = "CREATE TABLE nothing (id STRING, request_id STRING) WITH ('connector' = 'blackhole')"
MINUTES = """
CREATE TABLE minutes (
    window_start STRING, account STRING, model STRING,
    requests BIGINT, input_tokens BIGINT, output_tokens BIGINT, cached_tokens BIGINT,
    PRIMARY KEY (window_start, account, model) NOT ENFORCED
) WITH (
    'connector' = 'upsert-kafka', 'topic' = '{topic}_minutes', 'properties.bootstrap.servers' = '{bootstrap}',
    'key.format' = 'json', 'value.format' = 'json'
)
"""


class Stage(Enum):
    """How far the events go."""

    PARSED = "INSERT INTO nothing SELECT id, data.request_id FROM events"
    ONCE = "INSERT INTO nothing SELECT id, data.request_id FROM once"
    SUMMED = """
        INSERT INTO minutes
        SELECT CAST(FLOOR(`time` TO MINUTE) AS STRING), account, model,
               count(*), sum(input_tokens), sum(output_tokens), sum(cached_tokens)
        FROM joined GROUP BY FLOOR(`time` TO MINUTE), account, model
    """


def main(bootstrap: str, topic: str, stage: str, folder: str, jar: str) -> None:
    """Run one stage over all of a topic, on two slots, its state in RocksDB with a checkpoint every ten seconds."""
    settings = Configuration()
    for name, value in {
        "pipeline.jars": f"file://{jar}",
        "parallelism.default": "2",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        "table.exec.state.ttl": "1 h",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "5000",
        "table.local-time-zone": "UTC",
        # In one process `process.size` sets nothing, and RocksDB has 128 MB: with more state than that it spends its
        # time reading blocks again.
        "taskmanager.memory.managed.size": "3g",
        "execution.checkpointing.incremental": "true",
        "python.client.executable": sys.executable,
    }.items():
        settings.set_string(name, value)
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
    )
    for statement in (EVENTS, ONCE, JOINED, NOTHING, MINUTES):
        tables.execute_sql(statement.format(topic=topic, bootstrap=bootstrap, folder=folder))
    tables.execute_sql(Stage[stage].value).wait()
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
