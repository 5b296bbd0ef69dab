"""A data folder that an older release left behind, for a stack of this one to go on from."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

from laptop.database import embedded_database, program
from laptop.folders import Folders

ARCHIVE = Path(__file__).with_name("0.1.0.tar.xz")
TRUTH = "truth.json"
"""In the data folder: what must have become of the traffic that it had metered."""


def unpack(data_dir: Path) -> None:
    """Make `data_dir` the data folder that the older stack left."""
    data_dir.mkdir(parents=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(data_dir, filter="data")
    options = ["--quiet", "--set=ON_ERROR_STOP=1", f"--file={data_dir / 'database.sql'}"]
    with embedded_database(Folders(data_dir).database) as url:
        restore = [str(program("psql")), *options, url]
        restored = subprocess.run(restore, capture_output=True, text=True, check=False)
    assert restored.returncode == 0, restored.stderr
