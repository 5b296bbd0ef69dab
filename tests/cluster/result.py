"""What a run on a cluster has shown, as the page that is committed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).with_name("RESULT.md")
HEAD = """\
# The chart on a cluster

Written by `make e2e-cluster`, which CI does not run: it takes half an hour. It installs the chart on an empty
cluster with the Spark Operator, sends traffic, deletes drivers and executors under it, upgrades, rolls back and
uninstalls ([test_release.py](test_release.py)). Then it upgrades from an earlier version and goes back under traffic
([test_upgrade.py](test_upgrade.py)), runs each application with a database role of its own
([test_roles.py](test_roles.py)), changes a Python file in running drivers
([test_while_developed.py](test_while_developed.py)), and gives each application two executors, of which one is killed
at any moment, and one in each stage ([test_with_executors.py](test_with_executors.py)). Bills are compared with the
generator's truth.

Commit `{commit}`, {cores} cores, Kubernetes {kubernetes}.

**{tests} tests passed.**

```
{progress}
```
"""


def write_page(tests: int, kubernetes: str, progress: Sequence[str]) -> None:
    """Write the page. `progress`: the lines that the run printed."""
    asked = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    PAGE.write_text(
        HEAD.format(
            commit=asked.stdout.strip() or "unknown",
            cores=os.cpu_count(),
            kubernetes=kubernetes,
            tests=tests,
            progress="\n".join(progress),
        ),
        "utf-8",
    )
