"""`make setup` installs the lock with uv, which the lock itself pins, at the index that pip is configured for."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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


INSTALLERS = {
    "pip, as the image and where uv cannot": ["-m", "pip", "install", "--disable-pip-version-check"],
    "uv, as make setup": ["-m", "uv", "pip", "install", "--no-cache", "--python", sys.executable],
}


def write_wheel(file: Path, number: int) -> None:
    """A package of one module."""
    contents = {
        "one.py": f"NUMBER = {number}\n",
        "one-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n",
        "one-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "one-1.0.dist-info/RECORD": "one.py,,\n",
    }
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in contents.items():
            archive.writestr(zipfile.ZipInfo(name), text)


@pytest.mark.parametrize("installer", INSTALLERS)
def test_a_wheel_with_one_byte_changed_is_refused(installer: str, tmp_path: Path) -> None:
    wheel = tmp_path / "wheels" / "one-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    write_wheel(wheel, 1)
    whole = wheel.read_bytes()
    lock = tmp_path / "lock.txt"
    lock.write_text(f"one==1.0 --hash=sha256:{hashlib.sha256(whole).hexdigest()}\n")
    place = tmp_path / "installed"
    options = ["--no-deps", "--no-index", "--find-links", str(wheel.parent), "--require-hashes"]
    command = [sys.executable, *INSTALLERS[installer], *options, "--target", str(place), "--requirement", str(lock)]

    def install() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False)

    # With the sums of an archive that is whole.
    write_wheel(wheel, 2)
    refused = install()
    assert refused.returncode != 0
    assert "hash" in refused.stderr.lower()
    assert not (place / "one.py").exists()
    wheel.write_bytes(whole)
    assert install().returncode == 0
    assert (place / "one.py").read_text() == "NUMBER = 1\n"


def test_every_installation_demands_hashes() -> None:
    dockerfile = (REQUIREMENTS.parent / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    installations = re.findall(r"pip install [^&]+", dockerfile)
    assert len(installations) == 2
    assert [each for each in installations if "--require-hashes" not in each] == []
    assert (REQUIREMENTS / "install.py").read_text(encoding="utf-8").count('"--require-hashes"') == 2
