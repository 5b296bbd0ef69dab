"""`python -m bench.rival`: what the same minute sums cost in Weir, in Flink SQL and in one process with Polars.

All read the same events from the same broker, one after another, and must give the same sums: requests joined with
their completions, each event once, by minute, account and model. What counts is CPU time for the events after a
warm-up; of a rival it is what it used for all of them less what it used, restarted, for the warm-up alone. Weir's has
its database, all of them leave out the broker.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated

import psycopg
import typer
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console
from rich.table import Table as Lines

from bench.events import Record
from bench.parts import Parts, running_parts, send
from bench.processes import cpu_seconds
from bench.report import RESULTS, machine
from bench.work import Plan, Tell, measure_ingestion, measure_reader
from jobs.streams import EVENTS_TOPIC
from laptop.jars import JarSet, cache_root, jar_folder
from laptop.java import find_java
from metering.vocabulary import Job

HERE = Path(__file__).parent
PARTITIONS = 4
WARM, ALL = "rival_warm", "rival_all"
WINDOWS = """
    SELECT to_char(window_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"'), account, model,
           coalesce(sum(quantity) FILTER (WHERE meter = 'requests'), 0)::bigint,
           coalesce(sum(quantity) FILTER (WHERE meter = 'input_tokens'), 0)::bigint,
           coalesce(sum(quantity) FILTER (WHERE meter = 'output_tokens'), 0)::bigint,
           coalesce(sum(quantity) FILTER (WHERE meter = 'cached_tokens'), 0)::bigint
    FROM usage_windows GROUP BY 1, 2, 3
"""
Sums = dict[tuple[str, str, str], tuple[int, int, int, int]]
"""By minute, account and model: requests, input, output and cached tokens."""


@dataclass(frozen=True)
class Found:
    """What one of them used for a million events, and what it is that it does."""

    what: str
    cpu_seconds_per_million: float
    does: str


@dataclass(frozen=True)
class Repetition:
    """All of them in turn over so many events, which made so many sums; with the load of the machine at its end."""

    events: int
    sums: int
    load: float
    found: list[Found]


def main(
    events: Annotated[str, typer.Option(help="Events to measure after the warm-up; several numbers, by commas.")] = (
        "300000,1000000,3000000"
    ),
    warm_up: Annotated[int, typer.Option(help="Events to warm up with.", min=1_000)] = 600_000,
    repetitions: Annotated[int, typer.Option(help="How often all are measured in turn.", min=1)] = 3,
) -> None:
    """Measure all in turn, compare their sums, and write bench/results/rival-<date>.json, anew after each measurement.

    With the defaults it takes about an hour on two cores.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(1))
    console = Console(stderr=True, highlight=False)
    counts = [int(count) for count in events.split(",")]

    def tell(text: str) -> None:
        console.print(f"{datetime.now(UTC):%H:%M:%S} {text} …")

    tell("Flink's environment")
    python, jar = flink()
    file, measured = RESULTS / f"rival-{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.json", list[Repetition]()
    for repetition in range(1, repetitions + 1):
        for count in counts:
            tell(f"{count:,} events, repetition {repetition} of {repetitions}")
            measured.append(_all_in_turn(python, jar, Plan(warm_up, count, 0), tell))
            _write(file, measured, warm_up)
            console.print(f"Written to {file}")
    _show(measured)


def _all_in_turn(python: Path, jar: Path, plan: Plan, tell: Tell) -> Repetition:
    """Weir, Flink and Polars over the same events, with a broker and a database of their own.

    Ends the run where their sums differ.
    """
    with tempfile.TemporaryDirectory(prefix="weir-rival-") as scratch:
        folder = Path(scratch)
        tell("broker and database start")
        with running_parts(folder) as parts:
            found, ours = _weir(folder, parts, plan, tell)
            tell("copying the events without heartbeats")
            counts = _copied(parts.kafka_bootstrap)
            more = counts[ALL] - counts[WARM]
            for stage, does in _STAGES.items():
                used = {}
                for topic in (WARM, ALL):
                    tell(f"Flink SQL, {stage.lower()}: {topic}")
                    place = folder / f"flink-{stage}-{topic}"
                    command = [str(python), str(HERE / "flink_sql.py"), parts.kafka_bootstrap, topic, stage]
                    used[topic] = _used([*command, str(place), str(jar)], place)
                cost = (used[ALL] - used[WARM]) / more * 1e6
                found.append(Found(f"Flink SQL: {stage.lower()}", round(cost, 1), does))
                tell(f"Flink SQL, {stage.lower()}: {cost:.1f} CPU-s/M")
            flinks = _latest(parts.kafka_bootstrap, f"{ALL}_minutes")
            used = {}
            for topic in (WARM, ALL):
                tell(f"Polars: {topic}")
                place = folder / f"polars-{topic}"
                command = [sys.executable, "-m", "bench.rival.polars_process", parts.kafka_bootstrap, topic]
                used[topic] = _used([*command, str(place)], place)
            found.append(Found("one process with Polars", (used[ALL] - used[WARM]) / more * 1e6, _POLARS))
            polars = _sums(folder / f"polars-{ALL}")
    _refuse_other_sums(ours, {"Flink SQL": flinks, "Polars": polars})
    return Repetition(plan.events, len(ours), round(os.getloadavg()[0], 2), found)


_WEIR = {
    Job.INGESTION: "a journal row for every record (validated by its contract, repeats and conflicts named), in Delta",
    Job.JOINS: "matched by arrival with a timeout, priced by version, in Delta",
    Job.BILLING: "windows, stragglers and days in Postgres, exact in every digit",
}
_STAGES = {
    "PARSED": "JSON to typed columns; a record that is none ends the job",
    "ONCE": "each source and id once within an hour (RocksDB); what a repeat said is gone, a conflict is none",
    "SUMMED": "that, joined and summed by minute, to a topic of updates: no journal, no price, no stragglers, and what "
    "comes an hour later meets nothing, without a word",
}
_POLARS = "parsed, once, joined and summed in memory: nothing is durable, and a crash begins again"


def _weir(folder: Path, parts: Parts, plan: Plan, tell: Tell) -> tuple[list[Found], Sums]:
    measured, marks = measure_ingestion(folder, parts, plan, lambda text: tell(f"Weir, ingestion: {text}"))
    found = [measured]
    for job in (Job.JOINS, Job.BILLING):

        def tell_job(text: str, job: Job = job) -> None:
            tell(f"Weir, {job}: {text}")

        measured, marks = measure_reader(job, folder, parts, plan, marks=marks, tell=tell_job)
        found.append(measured)
    with psycopg.connect(parts.postgres_url) as connection:
        rows = connection.execute(WINDOWS).fetchall()
    ours = [Found(f"Weir: {result.job}", result.cpu_seconds_per_million, _WEIR[Job(result.job)]) for result in found]
    database = sum(result.database_cpu_seconds_per_million for result in found)
    ours.append(Found("Weir: Postgres", database, "what the three of them asked of it"))
    total = sum(result.cpu_seconds_per_million for result in ours)
    return [*ours, Found("Weir: together", total, "from Kafka to the bill")], {row[:3]: row[3:] for row in rows}


def _copied(bootstrap: str) -> dict[str, int]:
    """Copy the events, those of the warm-up also alone; how many each topic has."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(
        [NewTopic(topic, PARTITIONS, 1) for name in (WARM, ALL) for topic in (name, f"{name}_minutes")]
    ).values():
        made.result()
    counts = {}
    for topic, prefix in ((WARM, b'"id":"warm-'), (ALL, b'"id":"')):
        kept = [
            record
            for record in _records(bootstrap, EVENTS_TOPIC)
            if prefix in record.value and b"ai.inference." in record.value
        ]
        send(bootstrap, iter(kept), topic)
        counts[topic] = len(kept)
    return counts


def _records(bootstrap: str, topic: str) -> Iterator[Record]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "copy", "enable.auto.commit": False})
    numbers = consumer.list_topics(topic).topics[topic].partitions
    partitions = [TopicPartition(topic, number, 0) for number in numbers]
    left = sum(consumer.get_watermark_offsets(partition)[1] for partition in partitions)
    consumer.assign(partitions)
    while left > 0:
        for record in consumer.consume(100_000, 1.0):
            left -= 1
            value = record.value()
            if value is not None:
                yield Record(record.key() or b"", value)
    consumer.close()


def _used(command: Sequence[str], folder: Path) -> float:
    """CPU-seconds of a process and all below it, from its start until it says that it is done."""
    folder.mkdir()
    environment = {**os.environ, "JAVA_HOME": str(find_java().parent.parent)}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            if not any(line.strip() == b"done" for line in process.stdout):
                raise RuntimeError(f"{command[1]} has failed:\n{(folder / 'log').read_text()[-4_000:]}")
            return cpu_seconds(process.pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _sums(folder: Path) -> Sums:
    """The sums in all files of a folder."""
    sums: Sums = {}
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "log":
            with file.open(newline="") as lines:
                for minute, account, model, *numbers in csv.reader(lines):
                    requests, *tokens = map(int, numbers)
                    at = minute.replace("T", " ")[:19] + "Z"
                    sums[at, account, model] = (requests, *tokens)  # type: ignore[assignment]  # three of them
    return sums


def _latest(bootstrap: str, topic: str) -> Sums:
    """The last that a topic says of each key."""
    sums: Sums = {}
    for record in _records(bootstrap, topic):
        row = json.loads(record.value)
        at = row["window_start"][:19] + "Z"
        sums[at, row["account"], row["model"]] = tuple(
            row[name] for name in ("requests", "input_tokens", "output_tokens", "cached_tokens")
        )
    return sums


def _refuse_other_sums(ours: Sums, others: dict[str, Sums]) -> None:
    for name, sums in others.items():
        if sums != ours:
            differing = sorted(key for key in {*ours, *sums} if ours.get(key) != sums.get(key))
            shown = "; ".join(f"{key}: {ours.get(key)}, {sums.get(key)}" for key in differing[:5])
            raise SystemExit(f"{name} has other sums than Weir in {len(differing)} places: {shown}")


def _write(file: Path, measured: Sequence[Repetition], warm_up: int) -> None:
    report = {
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "machine": machine(),
        "warm_up": warm_up,
        "repetitions": [asdict(repetition) for repetition in measured],
    }
    file.write_text(json.dumps(report, indent=2) + "\n")


def _show(measured: Sequence[Repetition]) -> None:
    counts = sorted({repetition.events for repetition in measured})
    table = Lines("what", *[f"{count:,} events" for count in counts], "what it does", title="CPU-s per million events")
    for place, of in enumerate(measured[0].found):
        table.add_row(of.what, *[_spread(measured, count, place) for count in counts], of.does)
    Console().print(table)


def _spread(measured: Sequence[Repetition], events: int, place: int) -> str:
    """The median of all repetitions, and the least and the most of them."""
    costs = [of.found[place].cpu_seconds_per_million for of in measured if of.events == events]
    return f"{median(costs):.1f} ({min(costs):.1f} to {max(costs):.1f})"


def flink() -> tuple[Path, Path]:
    """The interpreter that has PyFlink, and the connector's jar; both are fetched first where they are missing."""
    needed = HERE / "requirements.txt"
    environment = cache_root() / "rival"
    python, installed = environment / "bin" / "python", environment / "requirements.txt"
    if not installed.exists() or installed.read_text() != needed.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(needed)], check=True)
        installed.write_text(needed.read_text())
    (jar,) = jar_folder(JarSet.CONNECTORS, HERE / "jars.lock").glob("*.jar")
    return python, jar


if __name__ == "__main__":
    typer.run(main)
