"""Prometheus and Alertmanager of a laptop's stack, where they are on the PATH: what they watch, and how they start."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

from deployment.errors import CannotRun
from laptop.folders import Folders
from laptop.ports import LOOPBACK
from metering.vocabulary import Job
from monitoring.rule_file import Part, rule_file

PROMETHEUS = ("prometheus",)
ALERTMANAGER = ("alertmanager", "prometheus-alertmanager")
"""Its own name, and Debian's."""
HOW_TO_GET = "install the packages `prometheus` and `prometheus-alertmanager`, then `weir up` again"
SCRAPE_SECONDS = 5
RETENTION = "2d"
DISABLED = (Part.AUDIT, Part.FULL_AUDIT, Part.DATABASE_DISK)
"""Nothing puts audits on a schedule there, so none is ever overdue; the database is on the tables' file system."""
MODEST = {"GOMAXPROCS": "1", "GOMEMLIMIT": "160MiB"}
"""A laptop's few hundred series need neither a second core nor much memory."""

NO_RECEIVER = {"route": {"receiver": "nobody", "group_by": ["alertname", "job"]}, "receivers": [{"name": "nobody"}]}
"""Alerts are shown on the dashboard and sent nowhere, until a configuration has receivers."""


def find(names: tuple[str, ...]) -> str | None:
    """The first of these programs on the PATH."""
    return next((found for name in names if (found := shutil.which(name))), None)


def keep_alertmanager_config(folders: Folders, given: Path | None) -> None:
    """Put Alertmanager's configuration where `weir up` finds it, by default one without receivers.

    Relative files that `given` names are looked up beside the copy, so they should be absolute. Raises CannotRun for a
    file that Alertmanager refuses.
    """
    file = folders.alertmanager_config
    file.parent.mkdir(parents=True, exist_ok=True)
    if given is None:
        file.write_text(yaml.safe_dump(NO_RECEIVER, sort_keys=False), encoding="utf-8")
        return
    if find(ALERTMANAGER) is None:
        raise CannotRun(f"--alertmanager-config {given} needs Alertmanager: {HOW_TO_GET}.")
    if checker := shutil.which("amtool"):
        answer = subprocess.run([checker, "check-config", str(given)], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise CannotRun(f"Alertmanager refuses {given}:\n{(answer.stdout + answer.stderr).strip()}")
    try:
        text = given.read_text(encoding="utf-8")
    except OSError as error:
        raise CannotRun(f"{given} cannot be read: {error.strerror}.") from error
    # It may hold the password of a mail server or the address of a chat's webhook, and one without is there already.
    file.touch(mode=0o600)
    file.chmod(0o600)
    file.write_text(text, encoding="utf-8")


def prometheus_command(
    folders: Folders,
    port: int,
    targets: Mapping[str, int],
    alertmanager_port: int | None,
    runbook: str,
    *,
    scrape_seconds: int = SCRAPE_SECONDS,
    token: str = "",
) -> list[str]:
    """Write the configuration and the rules, and give the command line.

    `targets` are the metrics ports by program; `runbook` is the page that alerts link to; a reader of metrics
    must bring `token`, if there is one.
    """
    from monitoring.alerts import GROUPS  # `weir up` needs them only here, after the servers have been started

    folders.prometheus.mkdir(parents=True, exist_ok=True)
    disabled = (*DISABLED, *([] if folders.runs(Job.ANALYTICS) else [Part.ANALYTICS]))
    rules = rule_file(GROUPS, runbook=runbook, disabled=disabled)
    (folders.prometheus / "weir.rules.yaml").write_text(rules, encoding="utf-8")
    config = folders.prometheus / "prometheus.yml"
    content = prometheus_config(targets, alertmanager_port, scrape_seconds, token=token)
    # It may hold the token.
    config.touch()
    config.chmod(0o600)
    config.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return [
        find(PROMETHEUS) or PROMETHEUS[0],
        f"--config.file={config}",
        f"--web.listen-address={LOOPBACK}:{port}",
        f"--storage.tsdb.path={folders.prometheus / 'data'}",
        f"--storage.tsdb.retention.time={RETENTION}",
        # New rules without a restart: only this machine can ask for it.
        "--web.enable-lifecycle",
        "--log.level=warn",
    ]


def prometheus_config(
    targets: Mapping[str, int], alertmanager_port: int | None, scrape_seconds: int = SCRAPE_SECONDS, *, token: str = ""
) -> dict[str, object]:
    """What is scraped, which rules are evaluated, and where alerts go."""
    interval = f"{scrape_seconds}s"
    alertmanagers = (
        [{"static_configs": [{"targets": [f"{LOOPBACK}:{alertmanager_port}"]}]}] if alertmanager_port else []
    )
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": ["weir.rules.yaml"],
        "alerting": {"alertmanagers": alertmanagers},
        "scrape_configs": [
            {
                "job_name": "weir",
                # The series say themselves whose they are; a cluster's PodMonitor does the same.
                "honor_labels": True,
                **({"authorization": {"credentials": token}} if token else {}),
                "static_configs": [{"targets": [f"{LOOPBACK}:{port}" for port in targets.values()]}],
            }
        ],
    }


def alertmanager_command(folders: Folders, port: int) -> list[str]:
    """The command line of an Alertmanager that is alone."""
    return [
        find(ALERTMANAGER) or ALERTMANAGER[0],
        f"--config.file={folders.alertmanager_config}",
        f"--web.listen-address={LOOPBACK}:{port}",
        f"--storage.path={folders.data / 'alertmanager'}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
