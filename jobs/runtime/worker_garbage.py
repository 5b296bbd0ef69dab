"""What a Python worker of Spark has imported is exempt from the garbage collection after each of its tasks."""

from __future__ import annotations

import gc
import sys

from pyspark import TaskContext

_exempt_modules = 0


def exempt_imports() -> None:
    """Let the collection that PySpark makes after every task pass over what is loaded; nothing outside a worker.

    Of 1,500 modules it took as long as a task needs for several thousand rows. Called at the end of a task, again only
    where a later one has imported more. Garbage is collected before, so that none is kept.
    """
    global _exempt_modules  # noqa: PLW0603 -- of the worker's process, which all its tasks share
    if TaskContext.get() is None or len(sys.modules) <= _exempt_modules:
        return
    gc.collect()
    gc.freeze()
    _exempt_modules = len(sys.modules)
