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


def cpu_seconds_below(pid: int) -> tuple[float, float]:
    """The same of an application's Java, and of the workers below it: what is not the driver's own."""
    java, workers = 0.0, 0.0
    for process in tree(pid):
        try:
            if process.pid == pid:
                continue
            if process.name() == "java":
                java += own_cpu_seconds(process)
            else:
                workers += own_cpu_seconds(process)
        except psutil.NoSuchProcess:
            continue
    return java, workers


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
