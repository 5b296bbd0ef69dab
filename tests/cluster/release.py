"""One release of the chart on a cluster, seen through kubectl and helm as its operator sees it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from metering.vocabulary import ALWAYS
from tests import waiting

ROOT = Path(__file__).parents[2]
CHART = "charts/weir"
VALUES = "tests/cluster/values.yaml"
RUNNING_SECONDS = 300
STATUS = ("weir", "status", "--format", "json")
_began = time.monotonic()
progress: list[str] = []
"""Every line of it, for the page that a run writes."""
wait_until = partial(waiting.wait_until, every_seconds=1)
"""Asking the cluster is a process each time."""


def tell(text: str) -> None:
    """A line of progress: this test takes minutes."""
    line = f"  {time.monotonic() - _began:4.0f} s  {text}"
    progress.append(line)
    print(line, flush=True)


def run(*command: str, check: bool = True, timeout: float = 300, text: str | None = None) -> str:
    """What a command prints that reads `text`. Fails with what it said."""
    answer = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=timeout)
    if check:
        assert answer.returncode == 0, f"{' '.join(command)}\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout


@dataclass(frozen=True)
class Release:
    """A release of the chart; the image is `repository:tag`, loaded into the cluster before.

    `code` has the chart and the values that are installed: a version of the repository.
    """

    name: str
    namespace: str
    image: str
    code: Path = ROOT

    def kubectl(self, *arguments: str, check: bool = True, timeout: float = 300, text: str | None = None) -> str:
        """Run kubectl in the release's namespace; `text` is its input."""
        return run("kubectl", "--namespace", self.namespace, *arguments, check=check, timeout=timeout, text=text)

    def helm(self, *arguments: str, timeout: float = 400) -> str:
        """Run helm in the release's namespace."""
        return run("helm", "--namespace", self.namespace, *arguments, timeout=timeout)

    def install(self, *changes: str, files: Sequence[str] = ()) -> None:
        """Install or upgrade; `changes` are `path=value`, and `files` are more files of values."""
        repository, _, tag = self.image.rpartition(":")
        settings = [f"image.repository={repository}", f"image.tag={tag}", "image.pullPolicy=IfNotPresent", *changes]
        options = [word for setting in settings for word in ("--set", setting)]
        values = [word for file in (VALUES, *files) for word in ("--values", str(self.code / file))]
        self.helm("upgrade", "--install", self.name, str(self.code / CHART), *values, *options)

    def listed(self, kind: str, *options: str) -> list[dict[str, Any]]:
        """Objects of a kind as JSON."""
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, *options, "--output", "json"))["items"]
        return items

    def driver(self, job: str) -> str:
        """The name of a job's driver pod."""
        return f"{self.name}-weir-{job}-driver"

    def drivers(self) -> dict[str, str]:
        """The uid of the driver pod that runs for each job."""
        pods = {pod["metadata"]["name"]: pod for pod in self.listed("pods")}
        found = {job: pods[self.driver(job)] for job in ALWAYS if self.driver(job) in pods}
        return {
            job: pod["metadata"]["uid"]
            for job, pod in found.items()
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    def executors(self) -> list[str]:
        """Names of the executor pods that run."""
        label = ("--selector", "spark-role=executor", "--field-selector", "status.phase=Running")
        return [pod["metadata"]["name"] for pod in self.listed("pods", *label)]

    def working(self) -> set[str]:
        """The jobs that say of themselves that they work, read where they say it."""
        drivers = self.drivers()
        if not drivers:
            return set()
        listed = self.kubectl("exec", self.driver(next(iter(drivers))), "--", *STATUS, check=False)
        try:
            rows = json.loads(listed)
        except ValueError:
            return set()
        return {row["job"] for row in rows if row["state"] in ("running", "catching_up")}

    def memory_mib(self) -> dict[str, int]:
        """What each pod uses now, without the page cache it could give back, as its own control group says."""
        script = (
            "f=/sys/fs/cgroup/memory; if [ -e $f.current ]; then cat $f.current; grep ^inactive_file $f.stat; "
            "else cat $f/memory.usage_in_bytes; grep ^total_inactive_file $f/memory.stat; fi"
        )
        used = {}
        for pod in self.listed("pods", "--field-selector", "status.phase=Running"):
            name = pod["metadata"]["name"]
            total, _, inactive = self.kubectl("exec", name, "--", "sh", "-c", script).split()
            used[name] = (int(total) - int(inactive)) >> 20
        return used

    def wait_until_working(self) -> None:
        """Until every job has passed its checks and reported."""
        wait_until(lambda: set(self.drivers()) == set(ALWAYS), "all drivers running", RUNNING_SECONDS)
        wait_until(lambda: self.working() == set(ALWAYS), "all jobs working", RUNNING_SECONDS)

    def start(self, batch: str, name: str) -> None:
        """Run a batch job of the release now."""
        self.kubectl("create", "job", name, f"--from=cronjob/{self.name}-weir-{batch}")

    def start_command(self, name: str, script: str) -> None:
        """Run a shell script in a Job with this image, and with what the release's batch jobs are given."""
        cronjob = f"--from=cronjob/{self.name}-weir-traffic"
        job = json.loads(self.kubectl("create", "job", name, cronjob, "--dry-run=client", "--output", "json"))
        (container,) = job["spec"]["template"]["spec"]["containers"]
        container |= {"image": self.image, "args": ["bash", "-c", script]}
        self.kubectl("create", "--filename", "-", text=json.dumps(job))

    def in_billing(self, *command: str, text: str | None = None, timeout: float = 300) -> str:
        """What a command prints in the pod of billing's driver; `text` is its input."""
        return self.kubectl("exec", "--stdin", self.driver("billing"), "--", *command, text=text, timeout=timeout)

    def finish(self, name: str, seconds: float) -> str:
        """Wait for a batch job to end well; gives what it printed."""

        def is_over() -> bool:
            status = json.loads(self.kubectl("get", "job", name, "--output", "json"))["status"]
            return bool(status.get("succeeded") or status.get("failed"))

        wait_until(is_over, f"job {name}", seconds)
        status = json.loads(self.kubectl("get", "job", name, "--output", "json"))["status"]
        said = self.kubectl("logs", f"job/{name}")
        assert status.get("succeeded"), said
        return said

    def explain(self) -> str:
        """What to look at after a failure."""
        said = [self.kubectl("get", "sparkapplications,pods", "--output", "wide", check=False)]
        for pod in json.loads(self.kubectl("get", "pods", "--output", "json"))["items"]:
            name = pod["metadata"]["name"]
            said.append(f"--- {name}\n{self.kubectl('logs', '--tail=25', '--all-containers', name, check=False)}")
        return "\n".join(said)
