"""`python -m tests.simulation`: many histories, or one again; one that fails is made short and printed."""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from tests.simulation.conftest import dropped
from tests.simulation.kept import keep
from tests.simulation.simulate import quick_database, shrunk, simulate_seed

TELL_EVERY = 50


def main() -> int:
    """Run what was asked for; 0 when every history ended as it must."""
    options = _options()
    if options.seed is not None:
        seeds: Sequence[int] = [options.seed]
    else:
        seeds = range(options.first, options.first + options.histories)
    begun = time.monotonic()
    queue: multiprocessing.SimpleQueue[int | None] = multiprocessing.SimpleQueue()
    parts = [seeds[number :: options.processes] for number in range(options.processes)]
    workers = [multiprocessing.Process(target=_work, args=(part, options, queue)) for part in parts]
    for worker in workers:
        worker.start()
    failed, ended = [], 0
    for worker in workers:
        while worker.is_alive() or not queue.empty():
            if queue.empty():
                time.sleep(0.1)
                continue
            seed = queue.get()
            ended += 1
            failed += [] if seed is None else [seed]
            if ended % TELL_EVERY == 0:
                taken = time.monotonic() - begun
                print(f"{ended} of {len(seeds)} histories, {len(failed)} failed, {taken:.0f} s", flush=True)
    if options.results:
        said = {
            "commit": subprocess.run(
                ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
            ).stdout.strip(),
            "histories": ended,
            "first_seed": seeds[0],
            "failed_seeds": sorted(failed),
            "seconds": round(time.monotonic() - begun),
        }
        options.results.write_text(json.dumps(said, indent=2) + "\n")
    print(
        f"{ended} of {len(seeds)} histories, {len(failed)} failed{': seeds ' + str(sorted(failed)) if failed else ''}"
    )
    return 0 if ended == len(seeds) and not failed else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print its history")
    parser.add_argument("--first", type=int, default=0, help="the first seed of many")
    parser.add_argument("--histories", type=int, default=200, help="how many seeds")
    parser.add_argument("--processes", type=int, default=1, help="how many run at a time")
    parser.add_argument("--no-shrink", action="store_true", help="print what fails as it is")
    parser.add_argument("--stop", action="store_true", help="end at the first that fails")
    parser.add_argument("--keep", type=Path, help="write the shortest history that fails to this file")
    parser.add_argument("--results", type=Path, help="write what came of it to this file, as JSON")
    return parser.parse_args()


def _work(seeds: Sequence[int], options: argparse.Namespace, ended: Any) -> None:
    """Run the histories of some seeds, and say of each the seed if it failed."""
    structlog.configure(processors=[dropped])
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder, quick_database(Path(folder)) as database:
        for seed in seeds:
            outcome = simulate_seed(database, seed)
            ended.put(seed if outcome.broken else None)
            if outcome.broken and not options.no_shrink:
                short = shrunk(database, outcome)
                print(short, flush=True)
                print(f"shortest: seed {seed}, {len(short.steps)} steps, {short.seconds:.1f} s", flush=True)
                if options.keep:
                    keep(options.keep, seed, short.partitions, short.steps)
            elif outcome.broken or options.seed is not None:
                print(outcome, flush=True)
            if outcome.broken and options.stop:
                return


if __name__ == "__main__":
    sys.exit(main())
