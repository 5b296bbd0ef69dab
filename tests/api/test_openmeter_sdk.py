"""OpenMeter's own SDK, as its package is: it sends, asks, and makes and ends portal tokens."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import validated
from metering.api_keys import Scope
from tests.api.serving import Server, serving, start_ingestion
from tests.api.test_asking import fill
from tests.api.test_events_in import usable, values
from tests.conftest import fresh_database
from tests.packages import python_with

SDK = "openmeter==1.0.0b236"
PROGRAM = Path(__file__).with_name("openmeter_process.py")


@pytest.fixture(scope="module")
def reading(bootstrap: str, postgres_url: str) -> Iterator[Server]:
    with fresh_database(postgres_url) as database:
        fill(database)
        start_ingestion(database)
        with serving(bootstrap, database) as running:
            yield running


@pytest.mark.long
def test_openmeters_own_sdk_works_unchanged(reading: Server, tmp_path_factory: pytest.TempPathFactory) -> None:
    account = f"acme-{uuid4().hex}"
    keys = {
        "INGEST": usable(reading, scopes=[Scope.INGEST], accounts=[account], sources=["my-app"]),
        "READ": usable(reading, scopes=[Scope.READ], accounts=["acme"]),
        "PORTAL": usable(reading, scopes=[Scope.PORTAL], accounts=["acme"]),
    }
    python = python_with(tmp_path_factory.mktemp("openmeter"), SDK)
    command = [python, str(PROGRAM), f"http://127.0.0.1:{reading.port}", account, "requests", "m1"]
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **keys}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])

    sent = values(reading, account)
    rows = validated(sent, IngestionConfig().validator(), 1 << 20)
    assert rows["reason"].to_list() == [None] * 4, rows["violation"].to_list()
    assert sorted(json.loads(value)["id"] for value in sent) == [f"{account}-{number}" for number in range(1, 5)]
    assert sum(b'"timesource":"receipt"' in value for value in sent) == 2

    assert found["meters"]["requests"] == "COUNT"
    assert found["total"] == [[18, "acme", {}]]
    assert found["filtered"] == [[6, None, {}]]
    assert found["unreadable"] == 400, (
        "the SDK sends its filter as one text; ignored, the answer would be of all models"
    )
    assert sorted(found["days"], key=str) == [[6, "acme", {"model": model}] for model in ("m1", "m2", None)]
    assert found["posted"] == [[18, "acme", {}]]
    assert "acme,m1,6" in found["csv"]
    assert found["portal"] == [[18, None, {}]]
    assert found["after"] == 401
