"""One process with Polars: parse, deduplicate, join, sum by minute, all in memory.

`python -m bench.rival.polars_process BOOTSTRAP TOPIC FOLDER`. Says `done` when all that the topic holds is through, and
ends when its input does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
from confluent_kafka import Consumer, TopicPartition

BATCH_ROWS = 100_000
TEXTS = ("specversion", "type", "source", "id", "subject", "sequence", "time", "senttime")
DATA_TEXTS = ("request_id", "user_id", "api_key_id", "model", "operation", "route", "region", "content_hash", "status")
TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
SCHEMA = pl.Schema(
    {
        **dict.fromkeys(TEXTS, pl.String()),
        "data": pl.Struct({**dict.fromkeys(DATA_TEXTS, pl.String()), **dict.fromkeys(TOKENS, pl.Int64())}),
    }
)
PAIR = ["subject", "request_id"]
KEYS = ["window_start", "account", "model"]


class Minutes:
    """What has been seen, what waits for its other half, and the sums."""

    def __init__(self) -> None:
        self._seen: pl.DataFrame | None = None
        self._waiting: pl.DataFrame | None = None
        self.sums: pl.DataFrame | None = None

    def take(self, values: list[bytes]) -> None:
        """Events as JSON."""
        parsed = pl.read_ndjson(b"\n".join(values), schema=SCHEMA).unnest("data")
        events = parsed.unique(["source", "id"], keep="first", maintain_order=True)
        if self._seen is not None:
            events = events.join(self._seen, on=["source", "id"], how="anti")
        names = events.select("source", "id")
        self._seen = names if self._seen is None else self._seen.vstack(names)
        kept = events.select("type", "time", *PAIR, "model", *TOKENS)
        both = kept if self._waiting is None else self._waiting.vstack(kept)
        is_request = pl.col("type") == "ai.inference.request.v1"
        requests = both.filter(is_request).select(*PAIR, "model")
        pairs = both.filter(~is_request).drop("model").join(requests, on=PAIR)
        self._waiting = both.join(pairs.select(PAIR), on=PAIR, how="anti")
        minute = pl.col("time").str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ").dt.truncate("1m").alias("window_start")
        found = pairs.group_by(minute, pl.col("subject").alias("account"), "model").agg(
            pl.len().cast(pl.Int64).alias("requests"), *[pl.sum(name) for name in TOKENS]
        )
        parts = found if self.sums is None else self.sums.vstack(found)
        self.sums = parts.group_by(KEYS).agg(pl.sum("requests", *TOKENS))


def main(bootstrap: str, topic: str, folder: str) -> None:
    """Take all of a topic, and leave the sums in `folder`."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "polars", "enable.auto.commit": False})
    partitions = [TopicPartition(topic, number, 0) for number in consumer.list_topics(topic).topics[topic].partitions]
    left = sum(consumer.get_watermark_offsets(partition)[1] for partition in partitions)
    consumer.assign(partitions)
    minutes = Minutes()
    while left:
        values = [value for record in consumer.consume(BATCH_ROWS, 1.0) if (value := record.value()) is not None]
        if values:
            minutes.take(values)
            left -= len(values)
    assert minutes.sums is not None
    minutes.sums.with_columns(pl.col("window_start").dt.strftime("%Y-%m-%d %H:%M:%SZ")).write_csv(
        Path(folder) / "minutes.csv", include_header=False
    )
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
