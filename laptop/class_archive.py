"""An archive of Spark's loaded classes (class data sharing): an application starts with a third less CPU.

Made once by `make setup` in a short run that does what the applications do; without it they start, only slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from deployment.errors import CannotRun
from laptop.jars import connector_jars
from laptop.java import QUIET, archive_of, class_sharing

SUBMIT_VARIABLE = "PYSPARK_SUBMIT_ARGS"
LAUNCHER_VARIABLE = "SPARK_LAUNCHER_OPTS"
"""Options of the Java that only writes the command line of the other."""

TRAINING_LIMIT_SECONDS = 600


def archive_file() -> Path:
    """Where the archive is, made or not."""
    return archive_of("spark", connector_jars())


def submit_arguments(*java_options: str) -> dict[str, str]:
    """Environment variables that make pyspark's Java use the archive, if there is one, and these options."""
    return _submit(" ".join([*class_sharing(archive_file()), *java_options]))


def make_archive() -> Path:
    """Make the archive unless it is there. Raises `CannotRun` when the training run fails."""
    archive = archive_file()
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    for outdated in archive.parent.glob("spark-*.jsa"):
        outdated.unlink()
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        fresh = Path(scratch, archive.name)
        answer = subprocess.run(
            [sys.executable, "-m", "laptop.class_training"],
            cwd=scratch,
            env={**os.environ, **_submit(" ".join([f"-XX:ArchiveClassesAtExit={fresh}", *QUIET]))},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TRAINING_LIMIT_SECONDS,
        )
        if answer.returncode != 0 or not fresh.exists():
            raise CannotRun(f"The class archive could not be made:\n{answer.stderr[-2000:]}")
        fresh.replace(archive)
    return archive


def _submit(java_options: str) -> dict[str, str]:
    options = f"--conf 'spark.driver.defaultJavaOptions={java_options}' " if java_options else ""
    return {
        SUBMIT_VARIABLE: f"{options}--conf spark.ui.showConsoleProgress=false pyspark-shell",
        LAUNCHER_VARIABLE: "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }


if __name__ == "__main__":
    try:
        print(f"class archive: {make_archive()}")
    except (CannotRun, subprocess.TimeoutExpired) as error:
        # Not an error: everything works without it.
        print(f"Going on without a class archive. {error}", file=sys.stderr)
