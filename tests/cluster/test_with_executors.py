"""All four applications in mode cluster with two executors each, which are killed in turn, and in each stage: the same
totals.
"""

from __future__ import annotations

import pytest

from metering.vocabulary import ALWAYS, Job
from tests.cluster.release import ROOT, Release, tell, wait_until
from tests.cluster.test_release import BILLED_SECONDS, EQUAL
from tests.executor_kills import STAGES

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


def started(release: Release, job: str) -> int:
    """How many executors a job's driver has started: they are numbered."""
    return max((int(name.rpartition("-")[2]) for name in executors_of(release, job)), default=0)


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


def in_each_stage(release: Release) -> bool:
    """Whether each application had at least as many new executors as a batch of it has stages, and has all it needs."""
    lost = {job: started(release, job) - EXECUTORS for job in ALWAYS}
    return all(lost[job] >= len(STAGES[job]) for job in ALWAYS) and all_have_executors(release)


def test_an_executor_that_is_killed_in_each_stage_of_each_application_changes_no_bill(release: Release) -> None:
    """A task of the stage kills the one that it runs on, once it has done its part."""
    release.kubectl("delete", "persistentvolumeclaims", "--all")
    files = [f"--from-file={ROOT / place}" for place in ("tests/executor_kills.py", "tests/cluster/sitecustomize.py")]
    release.kubectl("create", "configmap", "kills", *files)
    tell("helm install, each application with two executors, of which each stage loses one")
    release.install(*CHANGES, files=("tests/cluster/kills.yaml",))
    release.wait_until_working()
    wait_until(lambda: all_have_executors(release), "two executors each", 240)
    before = release.drivers()
    # As many at once as ingestion leaves to tasks: of a thousand records its driver validates all.
    sending = "weir traffic --events 12000 --rate 1500 --seed 5 --truth /tmp/truth.json && weir compare /tmp/truth.json"
    release.start_command("traffic-4", sending)
    said = release.finish("traffic-4", BILLED_SECONDS)
    tell(said.strip().splitlines()[-1])
    assert EQUAL in said
    wait_until(lambda: in_each_stage(release), "an executor lost in each stage", 240)
    for job in ALWAYS:
        told = release.kubectl("logs", release.driver(job))
        assert {stage for stage in STAGES[job] if f"stage {stage}: " in told} == {*STAGES[job]}, job
        tell(f"{job}: {started(release, job) - EXECUTORS} executors killed in {', '.join(STAGES[job])}")
    assert release.drivers() == before, "a driver ended with its executor"
    release.helm("uninstall", release.name, "--wait")
    release.kubectl("delete", "configmap", "kills")
