"""`python -m tests.edits`: random edits under traffic and kills; writes RESULT.md when all is well."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from jobs.stack import StackConfig
from laptop import launch
from laptop.folders import Folders
from tests.edits.result import page
from tests.edits.run import Plan, run

RESULT = Path(__file__).parent / "RESULT.md"
CONFIG = {"jobs": {"joins": {"completion_timeout_seconds": 120}, "billing": {"grace_seconds": 300}}}
"""Short, so that nobody waits long for what is abandoned."""
MAX_SHOWN = 20


def main() -> int:
    """Run it; 0 when every version is the one that it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.edits", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which edits are drawn")
    parser.add_argument("--edits", type=int, default=1_000, help="how many")
    parser.add_argument("--kill-every-seconds", type=float, default=20.0, help="between two kills")
    options = parser.parse_args()
    git = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
    plan = Plan(options.seed, options.edits, options.kill_every_seconds)
    config = StackConfig.model_validate(CONFIG)
    with (
        tempfile.TemporaryDirectory(prefix="weir-edits-") as folder,
        launch.Launch.start(Folders(Path(folder) / "weir"), config, Console()) as started,
    ):
        result = run(started.stack, plan, lambda said: print(said, flush=True))
    written = page(result, git.stdout.strip(), os.cpu_count() or 1)
    print(written)
    for wrong in result.wrong[:MAX_SHOWN]:
        print(f"WRONG {wrong}")
    if result.wrong or not result.planted_seen:
        print(f"{len(result.wrong)} wrong in seed {plan.seed}")
        return 1
    RESULT.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
