"""`make setup` installs the lock with uv, which the lock itself pins, at the index that pip is configured for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parents[2] / "requirements"


def printed(script: str, **variables: str) -> str:
    """What a script beside the installer prints, with these variables and no other of pip's or uv's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    answer = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        cwd=REQUIREMENTS,
        env={**kept, **variables},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_the_lock_pins_the_installer_with_its_hashes() -> None:
    pin = printed(
        "from pathlib import Path; from install import pin_of; print(pin_of('uv', Path('dev.txt').read_text()))"
    )
    first, *hashes = pin.strip().splitlines()
    assert first.startswith("uv==")
    assert hashes
    assert all("--hash=sha256:" in line for line in hashes if not line.strip().startswith("#"))


def test_uv_uses_the_index_that_pip_is_configured_for() -> None:
    script = "from index import uv_environment as e; print(e().get('UV_DEFAULT_INDEX'), e().get('UV_FIND_LINKS'))"
    said = printed(script, PIP_INDEX_URL="https://packages.example/simple", PIP_FIND_LINKS="/somewhere")
    assert said.split() == ["https://packages.example/simple", "/somewhere"]


def test_a_setting_of_uv_itself_wins() -> None:
    script = "from index import uv_environment as e; print(e()['UV_DEFAULT_INDEX'])"
    said = printed(script, PIP_INDEX_URL="https://packages.example/simple", UV_DEFAULT_INDEX="https://mine.example/")
    assert said.strip() == "https://mine.example/"
