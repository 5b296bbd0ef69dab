"""A process that crashes with secrets in its hands: its log names the error, and no secret. Real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets import Subprotocol
from websockets.sync.client import connect

from catalog.capture import PASSWORD_VARIABLE
from jobs.runtime.kafka.access import KafkaAccess, SecurityProtocol
from laptop.class_archive import submit_arguments
from laptop.connect import Worker, prepare, server_command
from laptop.jars import connect_jars
from laptop.ports import free_port
from metering.vocabulary import ALWAYS, Job
from tests.waiting import wait_until

CANARIES = {name: f"canary-of-{name}" for name in ("postgres", "kafka", "store", "client", "cookie")}
PLANTED = """
import runpy, sys
import confluent_kafka, psycopg

def fail(conninfo="", *arguments, **named):
    in_a_local_variable = (conninfo, arguments, named)
    raise RuntimeError("planted")

psycopg.connect = psycopg.Connection.connect = fail
confluent_kafka.Producer = fail
more = sys.argv.pop(1)
exec(more)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
DRIVERS = [("jobs", job.value) for job in (*ALWAYS, Job.ANALYTICS)]
COMMANDS = [
    *(("jobs", "migrate"), ("jobs", "rebuild", "billing", "--yes"), ("jobs", "close")),
    *(("api",), ("webhooks",), ("laptop.quickstart", "connect"), ("laptop.quickstart", "wait")),
    *(("cli.main", "usage"), ("cli.main", "keys", "list"), ("cli.main", "verify"), ("cli.main", "webhooks", "list")),
]
LONGER = [*DRIVERS, ("jobs", "audit")]
"""They start Spark."""
OIDC = {
    "WEIR_OIDC_METADATA_URL": "http://127.0.0.1:1/.well-known/openid-configuration",
    "WEIR_OIDC_CLIENT_ID": "weir",
    "WEIR_OIDC_CLIENT_SECRET": CANARIES["client"],
    "WEIR_OIDC_COOKIE_SECRET": CANARIES["cookie"],
    "WEIR_OIDC_REDIRECT_URI": "http://127.0.0.1/oauth2callback",
}
OF_SIGN_IN = "from dashboard.sign_in import SignIn; SignIn.seen_by = fail"


def given(tmp_path: Path, jars: Path) -> dict[str, str]:
    """An environment with a secret of each kind."""
    variables = {
        "WEIR_POSTGRES_URL": f"postgresql://weir:{CANARIES['postgres']}@127.0.0.1:1/weir",
        "WEIR_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "WEIR_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "WEIR_KAFKA_USERNAME": "weir",
        "WEIR_KAFKA_PASSWORD": CANARIES["kafka"],
        "AWS_SECRET_ACCESS_KEY": CANARIES["store"],
        "WEIR_TABLES": str(tmp_path / "tables"),
        "WEIR_CHECKPOINTS": str(tmp_path / "checkpoints"),
        "WEIR_DATA": str(tmp_path / "data"),
        "WEIR_JARS": str(jars),
        "TMPDIR": str(tmp_path),
        "HOME": str(tmp_path),
    }
    return {**os.environ, **variables, **submit_arguments()}


def crashed(tmp_path: Path, jars: Path, *program: str, more: str = "") -> str:
    """What a program prints whose first connection to a server raises an error that nobody expects."""
    ended = subprocess.run(
        [sys.executable, "-c", PLANTED, more, *program],
        env=given(tmp_path, jars),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    printed = ended.stdout + ended.stderr
    assert ended.returncode != 0, printed[-2_000:]
    assert "planted" in printed, printed[-2_000:]
    return printed


def is_served(address: str) -> bool:
    """Whether a dashboard answers there."""
    try:
        return httpx.get(f"http://{address}/_stcore/health").is_success
    except httpx.TransportError:
        return False


def secrets_in(printed: str) -> list[str]:
    """The names of the secrets in a log."""
    return [name for name, canary in CANARIES.items() if canary in printed]


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("program", LONGER, ids=" ".join)
def test_a_driver_that_crashes_logs_no_secret(tmp_path: Path, jars: Path, program: tuple[str, ...]) -> None:
    printed = crashed(tmp_path, jars, *program)
    assert secrets_in(printed) == []


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("program", COMMANDS, ids=" ".join)
def test_any_other_process_that_crashes_logs_no_secret(tmp_path: Path, jars: Path, program: tuple[str, ...]) -> None:
    printed = crashed(tmp_path, jars, *program)
    assert secrets_in(printed) == []


def test_a_secret_that_is_logged_is_found(tmp_path: Path, jars: Path) -> None:
    spoken = "def fail(conninfo='', *_, **__): raise RuntimeError('planted: ' + conninfo)\npsycopg.connect = fail"
    assert secrets_in(crashed(tmp_path, jars, "laptop.quickstart", "wait", more=spoken)) == ["postgres"]


@pytest.mark.parametrize(("signs_in", "more"), [(False, ""), (True, OF_SIGN_IN)], ids=["database", "sign-in"])
def test_a_page_of_the_dashboard_that_crashes_logs_no_secret_and_its_viewer_sees_none(
    tmp_path: Path, jars: Path, signs_in: bool, more: str
) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = ("--server.headless=true", f"--server.port={address.partition(':')[2]}")
    environment = {**given(tmp_path, jars), **(OIDC if signs_in else {})}
    log = tmp_path / "log"
    shown = b""
    with log.open("wb") as file:
        program = [sys.executable, "-c", PLANTED, more, "dashboard", *options]
        process = subprocess.Popen(program, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: is_served(address), "the dashboard serves")
            with connect(f"ws://{address}/_stcore/stream", subprotocols=[Subprotocol("streamlit")]) as viewer:
                viewer.send(BackMsg(rerun_script=ClientState()).SerializeToString())
                # The viewer hears of the end of the script after all that it shows.
                while not (message := ForwardMsg.FromString(viewer.recv(60, decode=False))).HasField("script_finished"):
                    shown += message.SerializeToString()
            wait_until(lambda: "planted" in log.read_text(), "the error is logged")
        finally:
            process.terminate()
            process.wait(120)
    assert secrets_in(log.read_text()) == []
    assert secrets_in(shown.decode(errors="replace")) == []


def test_a_connect_worker_that_crashes_logs_no_secret(tmp_path: Path) -> None:
    access = KafkaAccess(
        bootstrap="127.0.0.1:1",
        security_protocol=SecurityProtocol.SASL_SSL,
        username="weir",
        password=SecretStr(CANARIES["kafka"]),
        ca_file=tmp_path / "missing.pem",
    )
    worker = Worker(access, free_port())
    prepare(tmp_path / "connect", worker, "catalog", {"database.password": f"${{env:{PASSWORD_VARIABLE}}}"})
    environment = {**os.environ, PASSWORD_VARIABLE: CANARIES["postgres"]}
    command = server_command(tmp_path / "connect", connect_jars(), worker)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert "missing.pem" in ended.stderr
    assert secrets_in(ended.stdout + ended.stderr) == []
