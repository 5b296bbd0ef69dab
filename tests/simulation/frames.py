"""What the applications use of Spark, over Arrow tables: rows are read when they are asked for."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from jobs.runtime.batch import Seen, seen_in
from jobs.runtime.kafka.records import RECORDS
from tests.simulation.calls import idle, outside
from tests.simulation.kafka import Kafka

Change = Callable[[pa.Table], pa.Table]
CONDITION = re.compile(r"(\w+) (>=|<) (\d+)")
MAX_FILES = 4
SELDOM = 0.2


class Frame:
    """Rows, and what is to be done with them; columns by name."""

    def __init__(self, read: Callable[[], pa.Table]) -> None:
        self._read = read
        self.schema = None

    def then(self, change: Change) -> Frame:
        """These rows, changed."""
        return Frame(lambda: change(self._read()))

    def select(self, *names: Any) -> Frame:
        """Only these columns."""
        return self.then(lambda rows: rows.select(list(names)))

    def where(self, condition: str) -> Frame:
        """Only the rows for which all of `column >= number AND column < number` hold."""
        return self.then(lambda rows: rows.filter(_holds(rows, condition)))

    def limit(self, count: int) -> Frame:
        """Only the first so many rows."""
        return self.then(lambda rows: rows.slice(0, count))

    def toArrow(self) -> pa.Table:  # noqa: N802 -- Spark's name
        """The rows."""
        return self._read()


def _holds(rows: pa.Table, condition: str) -> pa.Array:
    frame = pl.DataFrame(rows.select(list({name for name, _, _ in CONDITION.findall(condition)})))
    terms = [pl.col(n) >= int(x) if sign == ">=" else pl.col(n) < int(x) for n, sign, x in CONDITION.findall(condition)]
    return pa.array(frame.select(pl.all_horizontal(terms)).to_series().to_list(), pa.bool_())


def observed(batch: Frame, of_last_row: Iterable[str]) -> tuple[Frame, Callable[[], tuple[Seen, dict[str, Any]]]]:
    """Stands in for `new_rows.observed`."""
    found: list[pa.Table] = []

    def keep(rows: pa.Table) -> pa.Table:
        found.append(rows)
        return rows

    def seen() -> tuple[Seen, dict[str, Any]]:
        rows = pl.DataFrame(found[-1])
        last = {} if rows.is_empty() else rows.sort("lsn").tail(1).select(list(of_last_row)).to_dicts()[0]
        return seen_in(found[-1]["lsn"]), last

    return batch.then(keep), seen


class Tasks:
    """Numbers of tasks, some for each of Spark's tasks."""

    def __init__(self, numbers: list[list[int]]) -> None:
        self._numbers = numbers

    def mapInArrow(self, run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], kinds: str) -> Frame:  # noqa: N802 -- Spark's name
        """What `run` makes in each task; all columns of `kinds` are binary."""
        schema = pa.schema([pa.field(kind.split()[0], pa.binary()) for kind in kinds.split(",")])

        def made() -> pa.Table:
            asked = ([pa.record_batch([pa.array(numbers, pa.int64())], ["id"])] for numbers in self._numbers)
            batches = outside("spark", lambda: [batch for numbers in asked for batch in run(iter(numbers))])
            return pa.Table.from_batches(batches, schema)

        return Frame(made)


class Stream:
    """A streaming frame and its query: batches come when the driver waits for them."""

    def __init__(self, batches: Callable[[], Iterator[pa.Table | None]], changes: tuple[Change, ...] = ()) -> None:
        self._batches, self._changes = batches, changes
        self._take: Callable[[Frame, int], None] | None = None
        self._coming: Iterator[pa.Table | None] = iter(())

    def then(self, change: Change) -> Stream:
        """Every batch, changed."""
        return Stream(self._batches, (*self._changes, change))

    def select(self, *names: Any) -> Stream:
        """Only these columns."""
        return self.then(lambda rows: rows.select(list(names)))

    def selectExpr(self, *_: str) -> Stream:  # noqa: N802 -- Spark's name
        """As it is: these records have their marks."""
        return self

    @property
    def writeStream(self) -> Stream:  # noqa: N802 -- Spark's name
        """Itself, which is also its writer."""
        return self

    def foreachBatch(self, take: Callable[[Frame, int], None]) -> Self:  # noqa: N802 -- Spark's name
        """Give every batch to `take`."""
        self._take = take
        return self

    def option(self, *_: Any) -> Self:
        """A checkpoint is nothing that anybody relies on."""
        return self

    def trigger(self, **_: Any) -> Self:
        """A batch comes when it is asked for."""
        return self

    def start(self) -> Self:
        """The query."""
        self._coming = self._batches()
        return self

    def stop(self) -> None:
        """Nothing goes on by itself."""

    def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802 -- Spark's name
        """One batch, if there is one. Raises what its sink raises."""
        assert self._take is not None
        rows = outside("spark", lambda: next(self._coming))
        if rows is None:
            idle()
            return False
        batch = Frame(lambda: rows)
        # As Spark, which makes what the driver asks for: of records that the driver reads itself no task leaves a file.
        for change in self._changes:
            batch = batch.then(change)
        self._take(batch, 0)
        return False


class Spark:
    """A session that reads Delta tables as they are, and topics of `Kafka`, in batches of any size.

    One that is not `sound` now and then gives a batch without one of its rows, or with another one twice instead.
    """

    def __init__(self, kafka: Kafka, chance: random.Random, *, is_sound: bool) -> None:
        self._kafka, self._chance, self._is_sound = kafka, chance, is_sound
        # Without executors: what `driver_rows` says is of the drawn configuration.
        self.sparkContext = SimpleNamespace(defaultParallelism=2, getConf=lambda: {"spark.master": "local[2]"})

    def range(self, first: int, end: int, _step: int, tasks: int) -> Tasks:
        """Numbers as a frame, in so many tasks."""
        return Tasks([list(range(first, end))[number::tasks] for number in range(tasks)])

    def createDataFrame(self, rows: pa.Table, _schema: Any = None) -> Frame:  # noqa: N802 -- Spark's name
        """Rows as a frame."""
        return Frame(lambda: rows)

    @property
    def read(self) -> _Reader:
        """Of a table's version."""
        return _Reader(self, self._kafka, self._chance, is_stream=False)

    @property
    def readStream(self) -> _Reader:  # noqa: N802 -- Spark's name
        """Of a table's commits, or of a topic."""
        return _Reader(self, self._kafka, self._chance, is_stream=True)

    def given(self, batches: Iterator[pa.Table | None]) -> Iterator[pa.Table | None]:
        """The batches as they come to the driver."""
        for rows in batches:
            is_wrong = not self._is_sound and rows is not None and self._chance.random() < SELDOM
            yield self._wrong(rows) if is_wrong else rows

    def _wrong(self, rows: pa.Table) -> pa.Table:
        places = list(range(len(rows)))
        if len(places) > 2 and self._chance.random() < 0.5:
            # Neither the first nor the last: count and ends stay as they are.
            lost = self._chance.choice(places[1:-1])
            return rows.take([place if place != lost else lost - 1 for place in places])
        lost = self._chance.choice(places)
        return rows.take(pa.array([place for place in places if place != lost], pa.int64()))


class _Reader:
    def __init__(self, spark: Spark, kafka: Kafka, chance: random.Random, *, is_stream: bool) -> None:
        self._spark, self._kafka, self._chance, self._is_stream = spark, kafka, chance, is_stream
        self._format = ""
        self._options: dict[str, Any] = {}

    def format(self, name: str) -> Self:
        self._format = name
        return self

    def option(self, name: str, value: Any) -> Self:
        self._options[name] = value
        return self

    def options(self, **values: Any) -> Self:
        self._options |= values
        return self

    def load(self, path: str = "") -> Any:
        if self._format == "kafka":
            return Stream(lambda: self._spark.given(topic_batches(self._kafka, self._options, self._chance)))
        if self._is_stream:
            first = int(self._options["startingVersion"])
            return Stream(lambda: self._spark.given(table_batches(Path(path), first, self._chance)))
        version = int(self._options["versionAsOf"])
        return Frame(lambda: outside("spark", lambda: DeltaTable(path, version=version).to_pyarrow_table()))


def topic_batches(kafka: Kafka, options: dict[str, Any], chance: random.Random) -> Iterator[pa.Table | None]:
    """Records of topics from their starting offsets on, cut anywhere; None when there are none."""
    places = [(topic, partition) for topic, known in json.loads(options["assign"]).items() for partition in known]
    starting = json.loads(options["startingOffsets"])
    at = {(topic, int(p)): max(0, offset) for topic, known in starting.items() for p, offset in known.items()}
    if chance.random() < 0.2:
        # A query begins where it was told to; one that begins earlier gives records that are known.
        at = {place: max(0, offset - chance.randrange(4)) for place, offset in at.items()}
    while True:
        rows: list[dict[str, Any]] = []
        logs = [(place, kafka.topics[place[0]][place[1]]) for place in places]
        for place, log in logs:
            begin = at.setdefault(place, 0)
            end = chance.choice([begin, len(log), len(log), chance.randint(begin, max(begin, len(log)))])
            end = min(end, begin + int(options["maxOffsetsPerTrigger"]))
            rows += [record.row(*place) for record in log[begin:end] if record is not None]
            at[place] = max(begin, end)
        if rows:
            # Spark reads partitions in any order.
            chance.shuffle(rows)
            yield pa.Table.from_pylist(rows, schema=RECORDS)
        elif all(at[place] >= len(log) for place, log in logs):
            yield None


def table_batches(path: Path, first: int, chance: random.Random) -> Iterator[pa.Table | None]:
    """Files of a table's commits from the version `first` on, some at a time; None when there are no more."""
    version, files = first, list[str]()
    while True:
        latest = DeltaTable(str(path)).version()
        while version <= latest:
            files += _added(path, version)
            version += 1
        if not files:
            yield None
            continue
        taken, files = files[: (most := chance.randint(1, MAX_FILES))], files[most:]
        yield pa.concat_tables([_file(path, name) for name in taken], promote_options="default")


def _added(path: Path, version: int) -> list[str]:
    """The files with data that a commit added; none of one that changed what was there (`skipChangeCommits`)."""
    commit = path / "_delta_log" / f"{version:020d}.json"
    if not commit.exists():
        raise PySparkException(f"the log of {path} does not reach back to version {version}")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    if any(action.get("remove", {}).get("dataChange") for action in actions):
        return []
    return [action["add"]["path"] for action in actions if action.get("add", {}).get("dataChange")]


def _file(path: Path, name: str) -> pa.Table:
    try:
        return pl.read_parquet(path / name, hive_partitioning=True, use_pyarrow=False).to_arrow()
    except FileNotFoundError as error:
        raise PySparkException(f"{name} is gone") from error
