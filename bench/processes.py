"""CPU and memory of a process with everything below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import psutil


def tree(pid: int) -> Iterator[psutil.Process]:
    """A process and its descendants that run now. Nothing when it has ended."""
    try:
        root = psutil.Process(pid)
        yield root
        yield from root.children(recursive=True)
    except psutil.NoSuchProcess:
        return


def cpu_seconds(pid: int) -> float:
    """User and system time that a process tree has used so far, its ended and waited-for children included."""
    total = 0.0
    for process in tree(pid):
        try:
            total += own_cpu_seconds(process)
        except psutil.NoSuchProcess:
            continue
    return total


class Below:
    """What the processes below one have used, Java and the others apart; of one that has ended what was seen last.

    Spark's workers end when they have had nothing to do for a minute, and nobody counts then what they used.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[tuple[int, float], tuple[bool, float]] = {}

    def look(self) -> None:
        """Note what they have used so far."""
        for process in tree(self._pid):
            try:
                if process.pid != self._pid:
                    times = process.cpu_times()
                    is_java = process.name() == "java"
                    self._seen[process.pid, process.create_time()] = is_java, float(times.user + times.system)
            except psutil.NoSuchProcess:
                continue

    def cpu_seconds(self) -> tuple[float, float]:
        """Of Java, and of the workers."""
        self.look()
        java, workers = ([used for of_java, used in self._seen.values() if of_java is kind] for kind in (True, False))
        return sum(java), sum(workers)


def own_cpu_seconds(process: psutil.Process) -> float:
    """The same of one process: what ended children used is in its books, what running ones used is in their own.

    Raises psutil.NoSuchProcess.
    """
    times = process.cpu_times()
    return float(
        times.user + times.system + getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    )


def resident_mib(pids: Iterable[int]) -> float:
    """Memory that the process trees hold, shared pages divided among their users (PSS) where the system tells it."""
    total = 0
    for process in {process.pid: process for pid in pids for process in tree(pid)}.values():
        try:
            memory = process.memory_full_info()
        except psutil.Error:
            continue
        total += getattr(memory, "pss", memory.rss)
    return total / 2**20
