"""`python -m tests.pipelines.close_killed URL ACCOUNTS NUMBER`: the close of `bench.closed`, so many accounts at once.

It SIGKILLs itself before its statement of this number. 0: it ends by itself, and prints its memory at most (KiB) and
the numbers of the statements with which it began to write invoices, one for each of its transactions.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from dataclasses import replace
from typing import Any

import psycopg

from bench.closed import FIRST, close_of


def main(url: str, account_batch: int, killed_at: int) -> None:
    """Close the first month. Statements are counted as its cursors send them, each COPY among them."""
    statements, writes = 0, []

    def counted(function: Any) -> Any:
        def called(cursor: Any, statement: Any, *arguments: Any, **named: Any) -> Any:
            nonlocal statements
            statements += 1
            if statements == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if str(statement).startswith("COPY invoices "):
                writes.append(statements)
            return function(cursor, statement, *arguments, **named)

        return called

    for name in ("execute", "copy"):
        setattr(psycopg.Cursor, name, counted(getattr(psycopg.Cursor, name)))
    for _ in replace(close_of(url, FIRST), account_batch=account_batch).run():
        pass
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, *writes)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
