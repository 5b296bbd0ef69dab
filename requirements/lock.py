"""Resolves pyproject.toml into hash-locked files (`make lock`), and checks without a network that they are current."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

from index import uv_environment

ROOT = Path(__file__).resolve().parent.parent
LOCKS: dict[str, tuple[str, ...]] = {"dev": ("dev",), "image": ("api", "dashboard", "laptop", "webhooks")}
"""Lock → the groups of pyproject.toml it holds besides the project's own dependencies. The widest is resolved first
and constrains the other, so that no package has two versions. `image` is what the container image holds."""

MARK = "# inputs: "


def inputs_digest() -> str:
    """SHA-256 of everything in pyproject.toml that decides what the locks hold."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    inputs = [project[name] for name in ("requires-python", "dependencies", "optional-dependencies")]
    return hashlib.sha256(json.dumps([LOCKS, *inputs], sort_keys=True).encode()).hexdigest()


def write_locks() -> None:
    """Resolve every lock; versions that are locked and still allowed stay. Raises `CalledProcessError`."""
    for name, groups in LOCKS.items():
        lock = _file(name)
        command = [
            *("uv", "pip", "compile", "pyproject.toml", "--output-file", str(lock), "--quiet", "--no-header"),
            *("--generate-hashes", "--universal", "--python-version", "3.11", "--no-emit-package", "weir"),
            *(word for group in groups for word in ("--extra", group)),
            *(() if name == "dev" else ("--constraint", str(_file("dev")))),
        ]
        subprocess.run(command, cwd=ROOT, check=True, env=uv_environment())
        pins = "".join(line for line in lock.read_text(encoding="utf-8").splitlines(keepends=True) if line[:1] != "#")
        lock.write_text(f"# Written by `make lock` from pyproject.toml.\n{MARK}{inputs_digest()}\n{pins}", "utf-8")


def stale_locks() -> list[str]:
    """Names of the locks that were not resolved from pyproject.toml as it stands."""
    expected = f"{MARK}{inputs_digest()}"
    return [
        name
        for name in LOCKS
        if not _file(name).exists() or expected not in _file(name).read_text(encoding="utf-8").splitlines()[:2]
    ]


def _file(name: str) -> Path:
    return ROOT / "requirements" / f"{name}.txt"


def main() -> int:
    """`--check`: 1 and a sentence when a lock is stale. Without it: write them."""
    if "--check" not in sys.argv[1:]:
        write_locks()
        return 0
    if stale := stale_locks():
        print(f"pyproject.toml has changed since requirements/ {', '.join(stale)} was locked: run `make lock`.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
