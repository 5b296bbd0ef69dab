"""Data folders that older versions left behind, for a stack of this one to go on from."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

from laptop.database import embedded_database, program
from laptop.folders import Folders
from tests.e2e.older.metered import Metered, metered

SHARED = "0.1.0"
"""The version from whose folder the stack goes on that the end-to-end tests share."""
UNSHARED = "575e8d8"
"""A later one, from whose folder a stack of its own goes on."""
TRUTH = "truth.json"
"""In the data folder: what must have become of the traffic that it had metered."""
CUSTOMER = "customer.json"
"""In the data folder: account and pairs of the customer (`tests.e2e.metering`) whose last events are unread."""
SHOWN = "shown.json"
"""In the data folder: what the commands of that version listed."""


def unpack(version: str, data_dir: Path) -> Metered:
    """Make `data_dir` the data folder that the older stack left; what it had metered."""
    data_dir.mkdir(parents=True)
    with tarfile.open(Path(__file__).with_name(f"{version}.tar.xz")) as archive:
        # As `filter="data"`, which Python has since 3.11.4.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(data_dir)
    options = ["--quiet", "--set=ON_ERROR_STOP=1", f"--file={data_dir / 'database.sql'}"]
    folders = Folders(data_dir)
    with embedded_database(folders.database) as url:
        restore = [str(program("psql")), *options, url]
        restored = subprocess.run(restore, capture_output=True, text=True, check=False)
        assert restored.returncode == 0, restored.stderr
        return metered(url, str(folders.tables))
