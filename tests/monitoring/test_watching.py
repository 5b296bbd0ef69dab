"""Prometheus and Alertmanager as `weir up` starts them: real ones, real scrapes, and a webhook that is told."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from deployment.errors import CannotRun
from laptop import watching
from laptop.folders import Folders
from laptop.ports import free_ports
from laptop.programs import api, choose_addresses, watchers
from laptop.watching import alertmanager_command, keep_alertmanager_config, prometheus_command, prometheus_config
from metering.vocabulary import Job
from monitoring.alerts import ALERTS
from monitoring.metrics import PROGRAMS

PATIENCE_SECONDS = 180
RUNBOOK = "http://127.0.0.1:8501/runbook"
EXAMPLE = Path(__file__).parents[2] / "monitoring" / "alertmanager.example.yml"


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "weir")


@contextmanager
def running(command: Sequence[str], folder: Path) -> Iterator[None]:
    with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **watching.MODEST}, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(120)


@contextmanager
def webhook() -> Iterator[tuple[int, queue.Queue[dict[str, Any]]]]:
    """A receiver of alerts: its port, and what it was told."""
    told: queue.Queue[dict[str, Any]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the signature is given
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, told
    finally:
        server.shutdown()


def needs(*programs: str) -> None:
    """Skip on a laptop without them; in CI they are installed."""
    for program in programs:
        if shutil.which(program) is None and not os.environ.get("CI"):
            pytest.skip(f"{program} is not on the PATH")


def receiver(port: int) -> dict[str, Any]:
    hook = {"url": f"http://127.0.0.1:{port}/alerts"}
    route = {"receiver": "on-call", "group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"}
    return {"route": route, "receivers": [{"name": "on-call", "webhook_configs": [hook]}]}


def test_an_alert_reaches_the_webhook_of_the_given_configuration_and_its_end_too(
    folders: Folders, tmp_path: Path
) -> None:
    needs("prometheus", "promtool")
    registry = CollectorRegistry()
    residual = Gauge("weir_conservation_residual_records", "As ingestion shows it.", registry=registry)
    residual.set(3)
    scraped, alertmanager_port, prometheus_port = free_ports(3)
    server, thread = start_http_server(scraped, addr="127.0.0.1", registry=registry)
    with ExitStack() as held, webhook() as (port, told):
        held.callback(thread.join)
        held.callback(server.shutdown)
        given = tmp_path / "given.yml"
        given.write_text(yaml.safe_dump(receiver(port)))
        keep_alertmanager_config(folders, given)
        held.enter_context(running(alertmanager_command(folders, alertmanager_port), tmp_path))
        targets = {"ingestion": scraped}
        command = prometheus_command(folders, prometheus_port, targets, alertmanager_port, RUNBOOK, scrape_seconds=1)
        held.enter_context(running(command, tmp_path))

        firing = told.get(timeout=PATIENCE_SECONDS)
        residual.set(0)
        resolved = told.get(timeout=PATIENCE_SECONDS)

    assert (firing["status"], resolved["status"]) == ("firing", "resolved")
    alert = firing["alerts"][0]
    assert alert["labels"] == {"alertname": "ConservationBroken", "severity": "page"}
    assert alert["annotations"]["runbook_url"] == f"{RUNBOOK}#conservationbroken"
    assert alert["annotations"]["description"].startswith("3 Kafka records")


def test_prometheus_accepts_the_configuration(folders: Folders) -> None:
    needs("prometheus", "promtool")
    prometheus_command(folders, 1, {"joins": 2}, 3, RUNBOOK, token="secret")
    ran = subprocess.run(
        ["promtool", "check", "config", str(folders.prometheus / "prometheus.yml")], capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_api_is_scraped_where_it_serves_its_metrics(folders: Folders) -> None:
    addresses = choose_addresses(folders)
    config: Any = prometheus_config(addresses.metrics, None)
    (at,) = config["scrape_configs"][0]["static_configs"]
    assert f"127.0.0.1:{api(folders, addresses, '').environment['WEIR_METRICS_PORT']}" in at["targets"]
    assert addresses.metrics.keys() == set(PROGRAMS) - {Job.ANALYTICS}, "no view is declared"


def test_a_laptop_that_has_no_schedule_has_no_alert_on_it(folders: Folders) -> None:
    prometheus_command(folders, 1, {"joins": 2}, 3, RUNBOOK)
    groups = yaml.safe_load((folders.prometheus / "weir.rules.yaml").read_text())["groups"]
    names = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    missing = {"AuditOverdue", "DatabaseFillsDisk", "DatabaseDiskFull"}
    assert names == {alert.name for alert in ALERTS} - missing


def test_without_a_configuration_alerts_go_nowhere(folders: Folders, tmp_path: Path) -> None:
    needs("amtool")
    keep_alertmanager_config(folders, None)
    checked = subprocess.run(["amtool", "check-config", str(folders.alertmanager_config)], check=False)
    assert checked.returncode == 0
    given = tmp_path / "given.yml"
    given.write_text(yaml.safe_dump(receiver(1)))
    keep_alertmanager_config(folders, given)
    assert folders.alertmanager_config.read_text() == given.read_text()
    keep_alertmanager_config(folders, None)
    assert "on-call" not in folders.alertmanager_config.read_text()


def test_only_its_owner_reads_a_configuration_of_receivers_also_where_one_without_was(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / watching.ALERTMANAGER[0]).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    keep_alertmanager_config(folders, None)
    folders.alertmanager_config.chmod(0o644)
    given = tmp_path / "given.yml"
    given.write_text(yaml.safe_dump(receiver(1)))
    keep_alertmanager_config(folders, given)
    assert folders.alertmanager_config.read_text() == given.read_text()
    assert folders.alertmanager_config.stat().st_mode & 0o777 == 0o600


def test_the_example_of_a_configuration_is_valid_and_names_only_alerts_that_exist(folders: Folders) -> None:
    needs("amtool")
    keep_alertmanager_config(folders, EXAMPLE)
    names = re.findall(r'alertname =~? "([^"]+)"', EXAMPLE.read_text())
    assert {name for group in names for name in group.split("|")} <= {alert.name for alert in ALERTS}


def until_found(url: str, content: bytes | None = None) -> Any:
    """What a server answers, once it is there."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        asked = urllib.request.Request(url, content, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return json.loads(answer.read() or b"null")
        except OSError:
            assert time.monotonic() < deadline, url
            time.sleep(0.05)


def test_by_the_example_an_application_that_is_down_silences_its_own_alerts_and_those_of_no_other_installation(
    folders: Folders, tmp_path: Path
) -> None:
    needs("amtool")
    keep_alertmanager_config(folders, EXAMPLE)
    (port,) = free_ports(1)
    installations = [{"namespace": "metering", "release": name} for name in ("test", "production")]
    stalled = [{"alertname": "ApplicationStalled", "job": "joins", "severity": "page", **of} for of in installations]
    down = {**stalled[0], "alertname": "ApplicationDown"}
    url = f"http://127.0.0.1:{port}/api/v2/alerts"
    with running(alertmanager_command(folders, port), tmp_path):
        until_found(url, json.dumps([{"labels": labels} for labels in (down, *stalled)]).encode())
        silenced: list[dict[str, str]] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not silenced and time.monotonic() < deadline:
            found = until_found(url)
            silenced = [alert["labels"] for alert in found if alert["status"]["inhibitedBy"]]
    assert silenced == [stalled[0]]


def test_a_configuration_that_alertmanager_refuses_is_refused_before_anything_starts(
    folders: Folders, tmp_path: Path
) -> None:
    needs("amtool")
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("route: {receiver: nobody-knows}\n")
    with pytest.raises(CannotRun, match="nobody-knows"):
        keep_alertmanager_config(folders, wrong)
    with pytest.raises(CannotRun, match="absent"):
        keep_alertmanager_config(folders, tmp_path / "absent.yml")


def test_what_is_not_installed_is_not_started_and_has_no_address(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    addresses = choose_addresses(folders)
    assert (addresses.prometheus_url, addresses.alertmanager_url) == ("", "")
    assert watchers(folders, addresses) == []
    with pytest.raises(CannotRun, match="install the packages"):
        keep_alertmanager_config(folders, tmp_path / "given.yml")


def test_what_is_installed_is_started_where_the_dashboard_finds_it(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for program in ("prometheus", "alertmanager"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    addresses = choose_addresses(folders)
    keep_alertmanager_config(folders, None)
    commands = {started.name: started.command() for started in watchers(folders, addresses)}
    urls = {"alertmanager": addresses.alertmanager_url, "prometheus": addresses.prometheus_url}
    assert commands.keys() == urls.keys()
    for name, url in urls.items():
        assert f"--web.listen-address={url.removeprefix('http://')}" in commands[name]


def test_with_a_token_a_laptops_prometheus_brings_it(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All programs of a stack have the environment of `weir up`, so drivers and the API ask for it."""
    (tmp_path / "prometheus").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("WEIR_METRICS_TOKEN", "secret\n")
    (started,) = watchers(folders, choose_addresses(folders))
    written = folders.prometheus / "prometheus.yml"
    written.parent.mkdir(parents=True)
    written.touch(mode=0o644)
    started.command()
    (scraped,) = yaml.safe_load(written.read_text())["scrape_configs"]
    assert scraped["authorization"] == {"credentials": "secret"}
    assert written.stat().st_mode & 0o777 == 0o600
    monkeypatch.delenv("WEIR_METRICS_TOKEN")
    (started,) = watchers(folders, choose_addresses(folders))
    started.command()
    assert "authorization" not in written.read_text()
