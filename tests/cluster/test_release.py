"""The chart on a real cluster with the real Spark Operator: the same totals as on a laptop, whatever is killed."""

from __future__ import annotations

import time

import pytest

from metering.vocabulary import ALWAYS
from tests.cluster.release import Release, tell, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

EQUAL = "0 lost, 0 duplicated, 0 wrong in the last digit; everything is as the truth says."
BILLED_SECONDS = 500
QUIET_SECONDS = 30
"""The operator notices a changed application within seconds; after this long without a restart there is none."""
CHANGE = "jobs.sessionization.config.session_gap_seconds=1500"


def restarted(release: Release, before: dict[str, str]) -> set[str]:
    """Jobs whose driver is another one than before, or gone."""
    now = release.drivers()
    return {job for job in ALWAYS if now.get(job) != before[job]}


def configuration(release: Release, job: str) -> str:
    """What a job's driver was given."""
    return release.kubectl("exec", release.driver(job), "--", "cat", f"/etc/weir/{job}.yaml")


def test_an_install_runs_every_application(release: Release) -> None:
    tell("helm install")
    release.install()
    release.wait_until_working()
    tell(f"all applications work; executors: {', '.join(release.executors()) or 'none'}")
    # Its bills are certain minutes later only: the next tests run meanwhile.
    release.start("traffic", "traffic-1")


def test_helm_test_sees_one_event_billed(release: Release) -> None:
    said = release.helm("test", release.name)
    assert "Phase:          Succeeded" in said
    tell("helm test succeeded")


def test_an_upgrade_that_changes_nothing_restarts_nothing(release: Release) -> None:
    before = release.drivers()
    release.install()
    tell("upgraded without a change")
    time.sleep(QUIET_SECONDS)
    assert restarted(release, before) == set()


def test_traffic_is_metered_to_the_last_digit(release: Release) -> None:
    said = release.finish("traffic-1", BILLED_SECONDS)
    tell(said.strip().splitlines()[-1])
    tell("memory: " + ", ".join(f"{pod} {mib} MiB" for pod, mib in release.memory_mib().items()))
    assert EQUAL in said


def test_a_deleted_driver_and_a_killed_executor_change_no_total(release: Release) -> None:
    before = release.drivers()
    release.start("troubled-traffic", "traffic-2")
    wait_until(lambda: " sent, " in release.kubectl("logs", "job/traffic-2", check=False), "traffic", 240)
    for job in ("ingestion", "joins", "billing"):
        release.kubectl("delete", "pod", release.driver(job), "--force", "--grace-period=0")
        tell(f"deleted {release.driver(job)}")
    for executor in release.executors():
        release.kubectl("delete", "pod", executor, "--force", "--grace-period=0")
        tell(f"deleted {executor}")
    wait_until(lambda: restarted(release, before) >= {"ingestion", "joins", "billing"}, "new drivers", 60)
    said = release.finish("traffic-2", BILLED_SECONDS)
    tell(said.strip().splitlines()[-1])
    assert EQUAL in said
    release.wait_until_working()
    assert restarted(release, before) == {"ingestion", "joins", "billing"}
    assert release.executors(), "the killed executor was not replaced"


def test_an_upgrade_of_one_jobs_configuration_restarts_that_job_only(release: Release) -> None:
    before = release.drivers()
    release.install(CHANGE)
    wait_until(lambda: restarted(release, before) != set(), "the restart", 60)
    release.wait_until_working()
    tell("upgraded one job's configuration")
    assert restarted(release, before) == {"sessionization"}
    assert "1500" in configuration(release, "sessionization")


def test_a_rollback_brings_the_configuration_back(release: Release) -> None:
    before = release.drivers()
    release.helm("rollback", release.name)
    wait_until(lambda: restarted(release, before) != set(), "the restart", 60)
    release.wait_until_working()
    tell("rolled back")
    assert restarted(release, before) == {"sessionization"}
    assert "1500" not in configuration(release, "sessionization")


def test_an_uninstall_leaves_the_volumes_and_nothing_else(release: Release) -> None:
    release.helm("uninstall", release.name, "--wait")
    kinds = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,sparkapplications,networkpolicies,ingresses"

    def left() -> list[str]:
        names = release.kubectl("get", kinds, "--output", "name").split()
        given = ("configmap/kube-root-ca.crt", "serviceaccount/default", "spark-operator")
        return [name for name in names if not name.endswith(given) and "spark-operator" not in name]

    wait_until(lambda: left() == [], f"the end of {left()}", 120)
    claims = {claim["metadata"]["name"] for claim in release.listed("persistentvolumeclaims")}
    tell(f"uninstalled; left are {', '.join(sorted(claims))}")
    assert claims == {
        f"{release.name}-weir-tables",
        *(f"data-{release.name}-weir-{s}-0" for s in ("kafka", "postgres")),
    }
