"""An upgrade from an earlier version, and the way back to it, while traffic arrives: the same totals."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.release import Release, tell, wait_until
from tests.cluster.test_release import BILLED_SECONDS, EQUAL

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

TRUTH = "/tmp/truth.json"
SCHEMA = """
import os, psycopg
with psycopg.connect(os.environ["WEIR_POSTGRES_URL"]) as connection:
    print(connection.execute("SELECT version_num FROM weir.alembic_version").fetchone()[0])
"""


@pytest.fixture
def before(release: Release) -> Release:
    """The version before: its image and its files. `tests/cluster/run` makes both from an earlier commit."""
    image, code = os.environ.get("WEIR_E2E_IMAGE_BEFORE"), os.environ.get("WEIR_E2E_CODE_BEFORE")
    if not image or not code:
        pytest.skip("needs an image of an earlier version in the cluster, as tests/cluster/run builds one")
    return replace(release, image=image, code=Path(code))


def sends(release: Release, seed: int) -> None:
    """Traffic of a minute begins, with the catalog that it needs, which the version that runs writes."""
    traffic = f"weir traffic --events 3600 --rate 60 --seed {seed} --truth {TRUTH}"
    release.start_command(f"traffic-{seed}", f"{traffic} && echo complete && sleep 3600")
    wait_until(lambda: " sent, " in release.kubectl("logs", f"job/traffic-{seed}", check=False), "traffic", 240)


def has_billed(release: Release, seed: int) -> str:
    """What `weir compare` says of that traffic, once all of it has come and is certain."""
    job = f"job/traffic-{seed}"
    wait_until(lambda: "complete" in release.kubectl("logs", job, check=False), "the end of the traffic", 300)
    truth = release.kubectl("exec", job, "--", "cat", TRUTH)
    release.in_billing("sh", "-c", f"cat > {TRUTH}", text=truth)
    release.in_billing(
        "weir", "drain", "--include-waiting", "--timeout", str(BILLED_SECONDS), timeout=BILLED_SECONDS + 60
    )
    compared = release.in_billing("weir", "compare", TRUTH, timeout=BILLED_SECONDS)
    release.kubectl("delete", "job", f"traffic-{seed}")
    tell(compared.strip().splitlines()[-1])
    return compared


def test_an_upgrade_and_the_way_back_under_traffic_change_no_total(release: Release, before: Release) -> None:
    """As docs/how-to/upgrade.md says: helm upgrade, and back by stopping, downgrading the schema and helm rollback."""
    release.kubectl("delete", "persistentvolumeclaims", "--all")
    tell("helm install of the version before")
    before.install()
    before.wait_until_working()
    schema = before.in_billing("python", "-c", SCHEMA).strip()
    sends(before, 21)
    release.install()
    release.wait_until_working()
    upgraded = release.in_billing("python", "-c", SCHEMA).strip()
    tell(f"upgraded from schema {schema} to {upgraded} under traffic")
    assert EQUAL in has_billed(release, 21)
    sends(release, 22)
    release.kubectl("delete", "sparkapplications", "--all")
    wait_until(lambda: not release.drivers(), "the end of all drivers", 120)
    release.start_command("downgrade", f"python -m jobs migrate --down-to {schema}")
    release.finish("downgrade", 120)
    release.helm("rollback", release.name)
    before.wait_until_working()
    assert before.in_billing("python", "-c", SCHEMA).strip() == schema
    tell(f"back at schema {schema} under traffic")
    assert EQUAL in has_billed(before, 22)
    release.helm("uninstall", release.name, "--wait")
