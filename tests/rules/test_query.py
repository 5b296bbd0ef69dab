"""The driver's loop and the batches of its query, which come when they like: here one whenever the loop waits."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.runtime.job import Progress
from jobs.runtime.query import Query
from jobs.runtime.run import Driver
from monitoring.liveness import LOOP, ROUND_SECONDS

LAST = 5
REPORTER: Any = SimpleNamespace(report_if_due=lambda _: LOOP.expect_round_within(ROUND_SECONDS), batch=lambda *_: None)
NOTHING: Any = None


@pytest.fixture(autouse=True)
def promise() -> Iterator[None]:
    """One that this process has given is no other test's."""
    yield
    LOOP.expect_round_within(float("inf"))


class Streaming:
    """Spark's frame, its writer and its query: the numbers from `first` on, each once."""

    def __init__(self, first: int) -> None:
        self.writeStream = self
        self._next = first
        self._take: Any = None

    def foreachBatch(self, take: Any) -> Streaming:  # noqa: N802 -- Spark's name
        self._take = take
        return self

    def option(self, *_: Any) -> Streaming:
        return self

    def trigger(self, **_: Any) -> Streaming:
        return self

    def start(self) -> Streaming:
        return self

    def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802 -- Spark's name
        number, self._next = self._next, self._next + 1
        self._take(number, 0)
        return False

    def stop(self) -> None:
        pass


class Numbers:
    """A source, and its sink. A new query goes on from what was taken by then."""

    trigger, look_seconds = "0 seconds", 0.0

    def __init__(self, *must_restart: bool, backlog: int = 0, found: int = 0) -> None:
        self.taken: list[int] = []
        self.are_live: list[bool] = []
        self.stopping = threading.Event()
        self._must_restart, self._backlog, self._found = list(must_restart), backlog, found

    def drive(self) -> None:
        """Until the sink has taken so many."""
        source: Any = self
        Driver(NOTHING, source, source, REPORTER, self.stopping).run(iter(lambda: Path("none"), Path()))

    def process(self, number: int) -> Progress:
        """A batch that takes longer than a round of the loop may."""
        self.are_live.append(LOOP.is_live(time.monotonic() + 2 * ROUND_SECONDS))
        self.taken.append(number)
        if len(self.taken) == LAST:
            self.stopping.set()
        return Progress(1, {})

    def exists(self) -> bool:
        return True

    def backlog(self, _spark: Any) -> Iterator[int]:
        yield from range(len(self.taken), self._backlog)

    def stream(self, _spark: Any) -> Streaming:
        return Streaming(len(self.taken))

    def has_news(self) -> bool:
        return not self._found

    def instead_of(self, number: int) -> int:
        return number

    def found(self) -> int | None:
        return len(self.taken) if len(self.taken) < self._found else None

    def must_restart(self) -> bool:
        return self._must_restart.pop(0) if self._must_restart else False

    def advance(self) -> None:
        pass


def test_an_ended_query_gets_no_further_batch() -> None:
    # At the loop's look, at the first batch, and at all that follow.
    numbers = Numbers(False, True, False)
    numbers.drive()
    assert numbers.taken == list(range(LAST))


def test_a_loop_that_takes_a_batch_itself_may_need_longer_for_it_than_for_a_round() -> None:
    LOOP.expect_round_within(ROUND_SECONDS)
    numbers = Numbers(backlog=2, found=LAST)
    numbers.drive()
    assert numbers.taken == list(range(LAST))
    assert numbers.are_live == [True] * LAST


class Unanswered(Streaming):
    """As Spark, which says some time later that a batch has failed."""

    def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802 -- Spark's name
        with suppress(RuntimeError):
            super().awaitTermination(_seconds)
        return False


class Failing(Numbers):
    """Its first batch moves what it remembers, and then fails. By then it must be rebuilt, or there is more."""

    def __init__(self, *, restart_requested: bool, found: int = 0) -> None:
        super().__init__(found=found)
        self._restart_requested, self.queries = restart_requested, 0

    def process(self, number: int) -> Progress:
        super().process(number)
        if len(self.taken) == 1:
            raise OSError("away")
        return Progress(1, {})

    def stream(self, _spark: Any) -> Streaming:
        self.queries += 1
        return Unanswered(len(self.taken))

    def has_news(self) -> bool:
        return True

    def found(self) -> int | None:
        return super().found() if self.taken else None

    def must_restart(self) -> bool:
        return self._restart_requested and bool(self.taken)


@pytest.mark.parametrize(
    "numbers", [Failing(restart_requested=True), Failing(restart_requested=False, found=LAST)], ids=["left", "found"]
)
def test_after_a_failed_batch_its_sink_gets_no_other_even_before_spark_reports_it(numbers: Failing) -> None:
    with pytest.raises(OSError, match="away"):
        numbers.drive()
    assert numbers.taken == [0]
    assert numbers.queries == 1


def test_a_batch_behind_a_failed_one_is_not_processed() -> None:
    sink: Any = Failing(restart_requested=False)
    driver = Driver(NOTHING, sink, sink, REPORTER, sink.stopping)
    batch: Any = 0
    with pytest.raises(OSError, match="away"):
        driver._process(batch)
    with pytest.raises(RuntimeError, match="a batch has failed"):
        driver._process(batch)
    assert sink.taken == [0]


def failing(error: Exception) -> Any:
    def take(*_: Any) -> None:
        raise error

    return take


def test_errors_of_the_running_query_are_reported_and_of_an_ended_one_ignored() -> None:
    error = ValueError("no such thing")
    query = Query(failing(error))
    with pytest.raises(RuntimeError, match="ValueError: no such thing"):
        query(NOTHING, 0)
    assert query.failure is error

    ended = Query(failing(error))
    ended.end()
    with pytest.raises(RuntimeError):
        ended(NOTHING, 0)
    assert ended.failure is None


def test_neither_a_query_nor_its_error_leads_to_the_driver_once_it_is_forgotten() -> None:
    class Remembering:
        def take(self, *_: Any) -> None:
            raise ValueError("a batch")

    driver = Remembering()
    query, remembered = Query(driver.take), weakref.ref(driver)
    with pytest.raises(RuntimeError) as raised:
        query(NOTHING, 0)
    query.forget()
    del driver
    gc.collect()
    assert remembered() is None
    assert str(raised.value) == "ValueError: a batch"
    query(NOTHING, 1)
