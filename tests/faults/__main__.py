"""`python -m tests.faults`: strike a running stack again and again, and compare what it billed with the truth.

Exit status 0 only if nothing is lost, doubled or wrong, no alert was wrong or missed, and a planted loss was seen.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.faults.result import summary, write
from tests.faults.run import Plan, run


def main(  # noqa: PLR0917  # options of a command
    faults: Annotated[int, typer.Option(help="How many faults in a run.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="The same seed draws the same faults and the same traffic.")] = 1,
    rate: Annotated[float, typer.Option(help="Records a second.", min=1)] = 40.0,
    store: Annotated[bool, typer.Option("--store", help="Tables in an object store, which suffers too.")] = False,
    driver_rows: Annotated[
        int | None,
        typer.Option(
            help="Larger batches of joins and billing go to tasks, of ingestion also above 1,000 records. Without it "
            "each of them has another of 1, 100 and its default, by the seed."
        ),
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="Keep data and logs in this folder, which must be empty.")] = None,
) -> None:
    """Attack the real stack, and write what came of it to bench/results/."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Everything that was started is stopped, also where a shell had the signals ignored.
        signal.signal(number, lambda *_: sys.exit(1))
    console = Console(stderr=True, highlight=False)
    folder = keep or Path(tempfile.mkdtemp(prefix="weir-faults-"))

    def tell(text: str) -> None:
        console.print(f"{datetime.now(UTC):%H:%M:%S} {text}", markup=False, soft_wrap=True)

    result = run(Plan(seed, faults, rate, with_store=store, driver_rows=driver_rows), folder.resolve(), tell)
    tell(summary(result))
    tell(f"Written to {write(result)}")
    if result["failures"]:
        for line in result["differences"]:
            tell(line)
        tell(f"Data and logs stay in {folder}.")
    elif keep is None:
        shutil.rmtree(folder)
    sys.exit(0 if result["passed"] else 1)


if __name__ == "__main__":
    typer.run(main)
