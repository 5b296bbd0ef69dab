"""`python -m tests.mutants [NAME …]`: plant each bug in a copy of the source, and see the tests that must go red.

Exit status 0 only if every planted bug was caught; the list goes to tests/mutants/CAUGHT.md when all were planted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.mutants.copying import copy_source
from tests.mutants.planted import MUTANTS, Mutant
from tests.simulation.mends import kept_mends

PLANTED = (*MUTANTS, *kept_mends())
"""Those that a test catches, and those that a history of the simulator does."""
LIST = Path(__file__).with_name("CAUGHT.md")
SOME_FAILED = 1
"""pytest's exit status; any other but 0 says that it could not run the tests."""


def main(names: list[str]) -> int:
    """Plant the bugs of these names, or all."""
    if unknown := set(names) - {mutant.name for mutant in PLANTED}:
        print(f"There is no mutant {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2
    chosen = [mutant for mutant in PLANTED if not names or mutant.name in names]
    console = Console(highlight=False)
    missed = []
    with tempfile.TemporaryDirectory(prefix="weir-mutants-") as scratch:
        copy = Path(scratch) / "source"
        copy_source(copy)
        # A test that is red by itself would catch everything.
        if _is_red(copy, *dict.fromkeys(test for mutant in chosen for test in mutant.caught_by)):
            print("The tests are red without any planted bug: see them green first.", file=sys.stderr)
            return 1
        for mutant in chosen:
            started = time.monotonic()
            red = [test for test in mutant.caught_by if _is_caught(mutant, test, copy)]
            verdict = "caught" if red == list(mutant.caught_by) else "MISSED"
            console.print(f"{verdict}  {mutant.name} ({time.monotonic() - started:.0f} s)")
            missed += [mutant] if verdict == "MISSED" else []
    if not names and not missed:
        LIST.write_text(listed())
    console.print(f"{len(chosen) - len(missed)} of {len(chosen)} planted bugs were caught.")
    return 1 if missed else 0


def _is_caught(mutant: Mutant, test: str, copy: Path) -> bool:
    """Whether a test fails on the copy with the bug. The bug is gone from it afterwards."""
    file = copy / mutant.file
    sound = file.read_text()
    file.write_text(sound.replace(mutant.sound, mutant.broken))
    try:
        return _is_red(copy, test)
    finally:
        file.write_text(sound)


def _is_red(copy: Path, *tests: str) -> bool:
    """Whether one of the tests fails on the copy as it is."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", *tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode not in (0, SOME_FAILED):
        raise RuntimeError(f"pytest could not run {' '.join(tests)}:\n{run.stdout}{run.stderr}")
    return run.returncode == SOME_FAILED


def listed() -> str:
    """The bugs and what catches each, as Markdown."""
    rows = "\n".join(
        f"| {mutant.name} | `{mutant.file}` | {', '.join(f'`{test}`' for test in mutant.caught_by)} |"
        for mutant in PLANTED
    )
    return (
        "# Planted bugs, and what caught each\n\nWritten by `make mutants`, which plants them one after the other in a"
        f" copy of the source.\n\n| bug | planted in | red then |\n|---|---|---|\n{rows}\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
