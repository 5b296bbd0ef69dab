"""All four applications in mode cluster with two executors each, which are killed in turn: the same totals."""

from __future__ import annotations

import pytest

from metering.vocabulary import ALWAYS, Job
from tests.cluster.release import Release, tell, wait_until
from tests.cluster.test_release import BILLED_SECONDS, EQUAL

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

EXECUTORS = 2
# One row is much: each batch that the driver does not read itself goes to tasks on executors.
CHANGES = (
    "jobDefaults.mode=cluster",
    f"jobDefaults.executor.instances={EXECUTORS}",
    *[f"jobs.{job}.config.driver_rows=1" for job in (Job.INGESTION, Job.JOINS, Job.BILLING)],
)


def executors_of(release: Release, job: str) -> list[str]:
    """Executor pods of a job that run."""
    return [name for name in release.executors() if name.startswith(f"weir-{job}-")]


def all_have_executors(release: Release) -> bool:
    """Whether each application has all its executors."""
    return all(len(executors_of(release, job)) == EXECUTORS for job in ALWAYS)


def test_all_four_applications_on_executors_that_are_killed_bill_to_the_last_digit(release: Release) -> None:
    # On empty volumes: the generator's events are the same ones again.
    release.kubectl("delete", "persistentvolumeclaims", "--all")
    tell("helm install, each application with two executors")
    release.install(*CHANGES)
    release.wait_until_working()
    wait_until(lambda: all_have_executors(release), "two executors each", 120)
    before = release.drivers()
    release.start("troubled-traffic", "traffic-3")
    wait_until(lambda: " sent, " in release.kubectl("logs", "job/traffic-3", check=False), "traffic", 240)
    for job in ALWAYS:
        killed = executors_of(release, job)[0]
        release.kubectl("delete", "pod", killed, "--force", "--grace-period=0")
        tell(f"deleted {killed}")
    said = release.finish("traffic-3", BILLED_SECONDS)
    tell(said.strip().splitlines()[-1])
    assert EQUAL in said
    assert release.drivers() == before, "a driver ended with its executor"
    wait_until(lambda: all_have_executors(release), "the killed executors again", 120)
    tell("memory: " + ", ".join(f"{pod} {mib} MiB" for pod, mib in release.memory_mib().items()))
    release.helm("uninstall", release.name, "--wait")
