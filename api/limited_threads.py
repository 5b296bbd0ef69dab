"""A few threads for calls that block, and a limit of how many wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from api.problems import unavailable

R = TypeVar("R")


class LimitedThreads:
    """`running` calls at once, and `waiting` beside them.

    A call that has begun keeps its thread until it ends, also when its client has been answered: never do more run
    than there are threads.
    """

    def __init__(self, name: str, running: int, waiting: int, answer_timeout_seconds: float) -> None:
        self._threads = ThreadPoolExecutor(running, thread_name_prefix=name)
        self._max_unfinished = running + waiting
        self._answer_timeout_seconds = answer_timeout_seconds
        self._unfinished: set[Future[Any]] = set()

    async def run(self, call: Callable[[], R], *, too_many: str, too_late: str) -> R:
        """What `call` returns, or raises. Raises Problem (503): with `too_many` at once, and where it is `too_late`."""
        self._unfinished = {work for work in self._unfinished if not work.done()}
        if len(self._unfinished) >= self._max_unfinished:
            raise unavailable(too_many)
        work = self._threads.submit(call)
        self._unfinished.add(work)
        try:
            async with asyncio.timeout(self._answer_timeout_seconds):
                # A client that no longer waits takes along a call that has not begun.
                return await asyncio.wrap_future(work)
        except TimeoutError:
            limit = f"There was no answer within {self._answer_timeout_seconds:.0f} s"
            raise unavailable(f"{limit}: {too_late}.") from None

    def close(self) -> None:
        """Take no further calls; what is running ends by its own time limits."""
        self._threads.shutdown(wait=False, cancel_futures=True)
