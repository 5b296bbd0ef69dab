"""A change of a Python file is in the running drivers within a minute, by what `skaffold dev` does with it.

Skaffold itself is not needed: what it does is a copy into each pod of the image and the command of its hook, and the
hook's command is read from skaffold.yaml.
"""

from __future__ import annotations

import io
import tarfile
import time
from pathlib import Path

import pytest
import yaml

from metering.vocabulary import ALWAYS
from tests.cluster.release import ROOT, Release, tell, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LIMIT_SECONDS = 60
CHANGED = "jobs/runtime/run.py"
# As Skaffold does it: folders that are not there yet are made.
UNPACK = ("tar", "xmf", "-", "--no-same-owner", "-C")
# What a driver does once Spark runs and it owns its job.
PLACE = "    context.ownership.resume()\n"


def packed(file: Path) -> str:
    """An archive of the file, at its place among the code."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packing:
        packing.add(file, CHANGED)
    return archive.getvalue().decode()


def sync(release: Release, file: Path) -> None:
    """As Skaffold: to each running pod of the image, then the hook in it."""
    (artifact,) = yaml.safe_load((ROOT / "skaffold.yaml").read_text(encoding="utf-8"))["build"]["artifacts"]
    (folder,) = {rule["dest"] for rule in artifact["sync"]["manual"]}
    (hook,) = artifact["sync"]["hooks"]["after"]
    for pod in release.listed("pods", "--field-selector", "status.phase=Running"):
        name = pod["metadata"]["name"]
        release.kubectl("exec", "--stdin", name, "--", *UNPACK, folder, text=packed(file))
        release.kubectl("exec", name, "--", *hook["container"]["command"])


def test_a_change_of_a_python_file_is_in_the_running_drivers_within_a_minute(release: Release, tmp_path: Path) -> None:
    release.kubectl("delete", "persistentvolumeclaims", "--all")
    tell("helm install as skaffold dev does")
    release.install("jobs.sessionization.mode=local", files=("skaffold-values.yaml",))
    release.wait_until_working()
    code = (ROOT / CHANGED).read_text(encoding="utf-8")
    assert code.count(PLACE) == 1
    before = release.drivers()
    for number in (1, 2):
        mark = f"this is change {number}"
        file = tmp_path / "run.py"
        file.write_text(code.replace(PLACE, f'{PLACE}    print("{mark}", flush=True)\n'), encoding="utf-8")
        began = time.monotonic()
        sync(release, file)
        tell(f"change {number} copied after {time.monotonic() - began:.0f} s")

        def have_changed(mark: str = mark) -> bool:
            return all(mark in release.kubectl("logs", "--tail=200", release.driver(job)) for job in ALWAYS)

        wait_until(have_changed, "the change in all drivers", LIMIT_SECONDS)
        seconds = time.monotonic() - began
        tell(f"change {number} runs in all drivers after {seconds:.0f} s")
        assert seconds <= LIMIT_SECONDS
    assert release.drivers() == before, "a pod was made anew"
    release.wait_until_working()
    release.helm("uninstall", release.name, "--wait")
