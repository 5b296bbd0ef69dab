"""Each application with a database role of its own: the same totals, and it is refused what is not its own."""

from __future__ import annotations

import base64
import json
from urllib.parse import urlsplit, urlunsplit

import pytest

from metering.vocabulary import ALWAYS
from tests.cluster.release import Release, run, tell
from tests.cluster.test_release import BILLED_SECONDS, EQUAL

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

ROLES = tuple(f"weir_{part}" for part in (*ALWAYS, "compact", "retain", "test"))
PASSWORD = "of-a-part"
VALUES = "tests/cluster/roles.yaml"
CREATED = f"""
import os, psycopg
with psycopg.connect(os.environ["WEIR_POSTGRES_URL"], autocommit=True) as server:
    for role in {ROLES!r}:
        server.execute(f"CREATE ROLE {{role}} LOGIN PASSWORD '{PASSWORD}'")
"""
SIGNED_IN = """
import json, os, psycopg
with psycopg.connect(os.environ["WEIR_POSTGRES_URL"]) as server:
    sessions = server.execute("SELECT host(client_addr), usename FROM pg_stat_activity WHERE client_addr IS NOT NULL")
    print(json.dumps(sorted({tuple(session) for session in sessions})))
"""


def run_as_owner(release: Release, name: str, program: str) -> str:
    """What a Python program prints in a Job that has the owner's URL."""
    release.start_command(name, f"python - <<'PROGRAM'\n{program}\nPROGRAM")
    return release.finish(name, 120)


def make_secrets(release: Release) -> None:
    """One for each role, with its URL."""
    (data,) = (each["data"] for each in release.listed("secrets") if each["metadata"]["name"].endswith("-quickstart"))
    url = urlsplit(base64.b64decode(data["url"]).decode())
    for role in ROLES:
        place = url._replace(netloc=f"{role}:{PASSWORD}@{url.netloc.rpartition('@')[2]}")
        name = role.replace("_", "-")
        release.kubectl("delete", "secret", name, "--ignore-not-found")
        release.kubectl("create", "secret", "generic", name, f"--from-literal=url={urlunsplit(place)}")


def test_each_application_with_a_role_of_its_own_bills_to_the_last_digit(release: Release) -> None:
    """As docs/how-to/database-roles.md says: the roles, a migration that grants, the Secrets, the values."""
    release.kubectl("delete", "persistentvolumeclaims", "--all")
    tell("helm install without applications, and roles")
    release.install(*(f"jobs.{job}.enabled=false" for job in ALWAYS))
    run_as_owner(release, "roles", CREATED)
    make_secrets(release)
    release.install(files=(VALUES,))
    release.wait_until_working()
    release.start("traffic", "traffic-5")
    assert release.helm("test", release.name).count("Phase:          Succeeded") == 1
    said = release.finish("traffic-5", BILLED_SECONDS)
    tell(f"as roles of their own: {said.strip().splitlines()[-1]}")
    assert EQUAL in said


def test_a_driver_signs_in_as_its_role_and_as_nobody_else(release: Release) -> None:
    sessions = json.loads(run_as_owner(release, "sessions", SIGNED_IN).strip().splitlines()[-1])
    for job in ALWAYS:
        pod = json.loads(release.kubectl("get", "pod", release.driver(job), "--output", "json"))
        users = {user for address, user in sessions if address == pod["status"]["podIP"]}
        assert users == {f"weir_{job}"}


def test_a_command_in_a_drivers_pod_is_refused_what_is_not_the_applications(release: Release) -> None:
    command = (
        "exec",
        release.driver("billing"),
        "--",
        "sh",
        "-c",
        "weir keys create --scope ingest --by e2e 2>&1; true",
    )
    said = run("kubectl", "--namespace", release.namespace, *command)
    assert "permission denied" in said
    tell("billing's role may not make keys")
    release.helm("uninstall", release.name, "--wait")
    for role in ROLES:
        release.kubectl("delete", "secret", role.replace("_", "-"))
