"""Packages of others that a test runs, apart from those of the project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def python_with(folder: Path, *packages: str) -> str:
    """The program of a Python of its own, in a folder, that has these packages."""
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", str(folder)], check=True)
    program = str(folder / "bin" / "python")
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", program, *packages], check=True)
    return program
