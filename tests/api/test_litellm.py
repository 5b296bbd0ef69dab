"""LiteLLM itself, as its package is: its OpenMeter callback posts what is valid, with the tokens that it counted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from metering.api_keys import Scope
from tests.api.serving import Server
from tests.api.test_events_in import usable, values
from tests.packages import python_with
from tests.waiting import wait_until

LITELLM = "litellm==1.110.2"
PROGRAM = Path(__file__).with_name("litellm_process.py")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with LiteLLM, apart from that of the project: no package of it is Weir's."""
    return python_with(tmp_path_factory.mktemp("litellm"), LITELLM)


@pytest.mark.long
def test_litellms_own_callback_posts_each_call_once_with_its_tokens(server: Server, python: str) -> None:
    account = f"acme-{uuid4().hex}"
    key = usable(server, scopes=[Scope.INGEST], accounts=[account], sources=["litellm-proxy"])
    address = {"OPENMETER_API_ENDPOINT": f"http://127.0.0.1:{server.port}", "OPENMETER_API_KEY": key}
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **address}
    ran = subprocess.run(
        [python, str(PROGRAM), account], env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert ran.returncode == 0, ran.stderr
    counted = json.loads(ran.stdout.splitlines()[-1])
    wait_until(lambda: len(values(server, account)) >= len(counted), "the callbacks", 30)
    posted = [json.loads(value) for value in values(server, account)]
    data = [(event["data"]["prompt_tokens"], event["data"]["completion_tokens"]) for event in posted]
    assert sorted(data) == sorted(map(tuple, counted))
    assert all(tokens > 0 for pair in data for tokens in pair)
    assert {(event["type"], event["source"], event["subject"]) for event in posted} == {
        ("litellm_tokens", "litellm-proxy", account)
    }
    assert len({event["id"] for event in posted}) == len(counted)
