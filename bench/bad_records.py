"""`python -m bench.bad_records`: what a tenth of bad records of each kind costs the validator."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import typer

from bench import events
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.validator import LOG_APPEND_TIME, EventValidator
from jobs.runtime.kafka.records import RECORDS

RECORDS_OF_A_BLOCK, BAD = 10_000, 1_000
RESULTS = Path(__file__).parent / "results"
POISON = b"the validator fails on this"


def main(runs: int = 5) -> None:
    """Print and write CPU-seconds of a block of 10,000 records, by what 1,000 of them are; the best of `runs`."""
    now = datetime.now(UTC)
    good = [record.value for record in events.records(RECORDS_OF_A_BLOCK, "bench", now)]
    validator = IngestionConfig().validator()
    found = {"good": cpu_seconds(validator.validate, good, now, runs)}
    for name, bad in _bad(good[0]).items():
        found[name] = cpu_seconds(validator.validate, _mixed(good, bad), now, runs)
    found["the validator raises"] = cpu_seconds(_failing(validator).validate, _mixed(good, POISON), now, 1)
    for name, seconds in found.items():
        typer.echo(f"{name:40} {seconds:8.3f} CPU-s {seconds / found['good']:8.2f} times")
    rounded = {name: round(seconds, 3) for name, seconds in found.items()}
    file = RESULTS / f"bad-records-{now:%Y-%m-%dT%H%M%SZ}.json"
    file.write_text(json.dumps({"records": RECORDS_OF_A_BLOCK, "bad": BAD, "cpu_seconds": rounded}, indent=2) + "\n")


def cpu_seconds(validator: Callable[[pa.Table], pa.Table], values: Sequence[bytes], now: datetime, runs: int) -> float:
    """What validating these values takes this process, all threads; the least of so many times."""
    place = {"topic": "events", "partition": 0, "timestamp": now, "timestampType": LOG_APPEND_TIME}
    rows = [{**place, "offset": offset, "value": value} for offset, value in enumerate(values)]
    table = pa.Table.from_pylist(rows, schema=RECORDS)
    taken = []
    for _ in range(runs):
        began = time.process_time()
        validator(table)
        taken.append(time.process_time() - began)
    return min(taken)


def _bad(event: bytes) -> dict[str, bytes]:
    """An event with something wrong, by what that is."""

    def with_members(text: bytes) -> bytes:
        return event[:-1] + b"," + text + b"}"

    return {
        "half a surrogate pair, twice as a key": rb'{"\ud800":1,"\ud800":2}',
        "the same in an event": with_members(rb'"\ud800":1,"\ud800":2'),
        "half a surrogate pair as a value": with_members(rb'"a":"\udfff"'),
        "a key twice": with_members(b'"a":1,"a":2'),
        "nested 1,200 deep": with_members(b'"a":' + b'{"a":' * 1_200 + b"1" + b"}" * 1_200),
        "cut off": event[:-9],
        "no UTF-8": event[:-9] + b"\xff" + event[-9:],
        "U+0000": with_members(rb'"a":"\u0000"'),
        "a subject that is a number": event.replace(b'"subject":"', b'"subject":7,"was":"'),
    }


def _mixed(good: Sequence[bytes], bad: bytes) -> list[bytes]:
    every = len(good) // BAD
    return [bad if number % every == 0 else value for number, value in enumerate(good)]


def _failing(validator: EventValidator) -> EventValidator:
    """A validator with a fault in its rules that no reader meets."""
    validate_block = validator._validate_block

    def failing(records: pl.DataFrame) -> pa.Table:
        if POISON in records["value"].to_list():
            raise ValueError("a fault that nobody knows of yet")
        return validate_block(records)

    validator._validate_block = failing  # type: ignore[method-assign]
    return validator


if __name__ == "__main__":
    typer.run(main)
