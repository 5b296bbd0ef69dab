"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_DATA_DIR = Path(".weir")

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", envvar="WEIR_DATA_DIR", help="The folder that holds everything of this stack."),
]
