"""Imported by every Python of the pods that have it on their path: kills executors within the stages of a driver."""

from __future__ import annotations

import sys

if sys.orig_argv[2:3] == ["/opt/weir/jobs/__main__.py"]:
    # It lies beside this file there.
    from executor_kills import Kills  # type: ignore[import-not-found]

    Kills().install(setattr)
