"""Installs a lock into the environment that runs this (`make setup`): with uv, in a tenth of pip's time, else with pip.

uv itself is one of the lock's packages, so pip installs that first, by the same hashes. Where uv cannot reach the index
that pip reaches (a proxy or a login that only pip knows), pip installs everything.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

# By path, not as a package: nothing is installed yet.
from index import uv_environment

PIP = (
    sys.executable,
    "-m",
    "pip",
    "install",
    "--disable-pip-version-check",
    "--progress-bar",
    "off",
    "--require-hashes",
)


def pin_of(package: str, lock: str) -> str:
    """The lines of a lock that pin one package: its version and hashes. Raises `ValueError` if it is not there."""
    lines = iter(lock.splitlines())
    for line in lines:
        if line.startswith(f"{package}=="):
            pin = [line]
            while pin[-1].endswith("\\"):
                pin.append(next(lines))
            return "\n".join(pin) + "\n"
    raise ValueError(f"The lock pins no {package}: run `make lock`.")


def install(lock: Path) -> None:
    """Make the environment hold what the lock says. Raises `CalledProcessError` when pip cannot either."""
    with tempfile.TemporaryDirectory() as scratch:
        pin = Path(scratch, "uv.txt")
        pin.write_text(pin_of("uv", lock.read_text("utf-8")), "utf-8")
        subprocess.run([*PIP, "--quiet", "--requirement", str(pin)], check=True)
    uv = [str(Path(sys.prefix, "bin", "uv")), "pip", "install", "--python", sys.executable, "--require-hashes"]
    # Compiled once here: where PYTHONDONTWRITEBYTECODE is set, each process would compile all that it imports.
    uv.append("--compile-bytecode")
    if subprocess.run([*uv, "--requirement", str(lock)], check=False, env=uv_environment()).returncode != 0:
        print("uv could not install the packages: pip does, which takes some minutes.", flush=True)
        subprocess.run([*PIP, "--requirement", str(lock)], check=True)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
