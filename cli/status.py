"""`weir status`: the applications, how far behind they are, and whether everything runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, Value, print_rows
from deployment.errors import CannotRun
from metering.reports import IDLE_BEAT_SECONDS, STALE, WORKING, is_off, is_stale
from metering.vocabulary import ALWAYS, Job

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from deployment.capture import Capture
    from deployment.job_states import JobRow, Unpublished
    from deployment.stack import Deployment, Process, Stack

COLUMNS = (
    "job",
    "state",
    "records_behind",
    "seconds_behind",
    "last_batch_at",
    "last_batch_records",
    "restarts",
    "pid",
    "message",
    "unpublished_changes",
    "unpublished_since",
)
BY_TOPIC = "topics"
"""A further column of JSON and CSV: of several topics of events how far behind each is, the slowest first."""
HELD_BACK_SECONDS = 2 * IDLE_BEAT_SECONDS
"""How far a topic may be behind another before it is named: at worst its heartbeats come so seldom."""


def status(form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Show each application: state, records and seconds behind, last batch, restarts.

    `unpublished_changes` counts what billing has stored but not yet published to its topics: corrections, and the
    minutes in which an account's windows changed. Below the table it says how far behind the capture of the catalog
    is, which deletions were not captured, and where joins differs from the catalog. Where ingestion reads several
    topics, it says how far behind each is, the slowest first (in JSON: `topics`).

    Exit status 0 when everything runs, else 1.
    """
    from deployment.stack import State, deployment_of, read_stack

    if (deployment := deployment_of(os.environ)) is not None:
        _status_of(deployment, form)
        return
    stack = read_stack(data_dir)
    if stack is None or not stack.supervisor.is_running:
        crashed = stack is not None and any(
            process.process and process.process.is_running for process in stack.processes
        )
        typer.echo(_not_running(data_dir, crashed), err=True)
        print_rows([_row(job, None, None) for job in ALWAYS], _columns(form), form)
        raise typer.Exit(1)
    from deployment.capture import Capture  # it takes longer than all of the above

    rows: dict[str, JobRow] = {}
    unpublished: dict[Job, Unpublished] = {}
    capture, warnings = Capture(), list[str]()
    try:
        if stack.postgres_url:
            rows, unpublished, capture, warnings = _read(stack)
    except CannotRun as problem:
        typer.echo(str(problem), err=True)
    processes = {process.name: process for process in stack.processes}
    listed = [_row(job, processes.get(job), rows.get(job), unpublished.get(job)) for job in _listed(processes)]
    print_rows(listed, _columns(form), form)
    others = [process for name, process in processes.items() if name not in tuple(Job)]
    deletions = unpropagated_sentence(rows)
    deletions += _outdated(stack, capture, rows)
    typer.echo("\n".join([*_others(stack, others), _capitalized(capture), *deletions, *warnings]), err=True)
    do_others_run = all(process.state is State.RUNNING for process in others) and not (capture.is_late or deletions)
    if not do_others_run or not all(row["state"] in WORKING for row in listed):
        raise typer.Exit(1)


def _status_of(deployment: Deployment, form: Format) -> None:
    """On a cluster Kubernetes watches over the processes; here speak the jobs alone."""
    rows, unpublished, capture, warnings = _read(deployment)
    running = reporting(rows)
    listed = [_row(job, running.get(job), rows.get(job), unpublished.get(job)) for job in _listed(running)]
    print_rows(listed, _columns(form), form)
    deletions = [*unpropagated_sentence(rows), *_outdated(deployment, capture, rows)]
    typer.echo("\n".join([_capitalized(capture), *deletions, *warnings]), err=True)
    if capture.is_late or deletions or not all(row["state"] in WORKING for row in listed):
        raise typer.Exit(1)


def _columns(form: Format) -> tuple[str, ...]:
    """A table has one line for each application; what there is by topic is below it."""
    return COLUMNS if form is Format.TABLE else (*COLUMNS, BY_TOPIC)


def reporting(rows: Mapping[str, JobRow]) -> dict[str, Process]:
    """By name: the applications of every installation that ever reported, and others unless they are switched off."""
    from deployment.stack import Process, State

    return {
        job: Process(job, State.RUNNING)
        for job, row in rows.items()
        if job in ALWAYS or not is_off(row.state, row.report_age_seconds)
    }


def _read(deployment: Deployment) -> tuple[dict[str, JobRow], dict[Job, Unpublished], Capture, list[str]]:
    from cli.ordered_events import behind_sentence
    from cli.topic_removal import read_pending, removal_sentences
    from deployment.asking import asking_database
    from deployment.capture import read_capture
    from deployment.job_states import read_jobs, read_unpublished
    from jobs.runtime.postgres.slot_log import slot_log_risk

    url = deployment.postgres_url
    with asking_database(url):
        rows, risk = read_jobs(url), slot_log_risk(url)
        of_topics = [*lag_sentences(rows), *slowest_topic_sentence(rows), *removal_sentences(read_pending(url))]
        warnings = [*of_topics, *([risk] if risk else []), *behind_sentence(url)]
        return rows, read_unpublished(url), read_capture(url), warnings


def _listed(processes: Collection[str]) -> list[Job]:
    """The applications of every installation, and of the others those that run."""
    return [job for job in Job if job in ALWAYS or job in processes]


def _capitalized(capture: Capture) -> str:
    return f"{capture.sentence[0].upper()}{capture.sentence[1:]}."


def _outdated(deployment: Deployment, capture: Capture, rows: Mapping[str, JobRow]) -> list[str]:
    from cli.catalog_status import outdated_rows

    try:
        return outdated_rows(deployment, capture, rows)
    except CannotRun as problem:
        return [str(problem)]


def unpropagated_sentence(rows: Mapping[str, JobRow]) -> list[str]:
    """A sentence about rows that joins has and the catalog has not, if nothing will remove them; else nothing."""
    joins = rows.get(Job.JOINS)
    count = 0 if joins is None else joins.progress.get("unpropagated_deletions", 0)
    if not count:
        return []
    what = f"{count} accounts and prices that were deleted while a replication slot was lost"
    return [f"joins prices with {what}: `weir catalog reconcile` deletes them once more."]


def lag_sentences(rows: Mapping[str, JobRow]) -> list[str]:
    """How far behind each of several topics of events is, the slowest first; else nothing."""
    ingestion = rows.get(Job.INGESTION)
    found = []
    for lag in () if ingestion is None else ingestion.progress.get(BY_TOPIC, ()):
        records, seconds = lag["records_behind"], lag["seconds_behind"]
        age = "for an unknown time" if seconds is None else f"{seconds:,.0f} s"
        found.append(f"Topic {lag['topic']}: {f'{records:,} records behind, {age}' if records else 'all is read'}.")
    return found


def slowest_topic_sentence(rows: Mapping[str, JobRow]) -> list[str]:
    """A sentence about the one of several topics of events that holds the frontier back; else nothing."""
    ingestion = rows.get(Job.INGESTION)
    topic = None if ingestion is None else ingestion.progress.get("slowest_topic")
    if ingestion is None or topic is None:
        return []
    seconds = ingestion.progress.get("slowest_topic_seconds")
    if seconds is None:
        return [f"Windows wait for the topic {topic}: a partition of it was not heard of yet (`weir topics list`)."]
    if seconds <= HELD_BACK_SECONDS:
        return []
    return [f"Windows wait for the topic {topic}, which is {seconds:.0f} s behind another (`weir topics list`)."]


def state_of(process: Process | None, row: JobRow | None) -> str:
    """One word for a job: the supervisor's while its process is not up, then the job's own, `stale` if that is old."""
    if process is None:
        return "stopped"
    if process.state != "running" or row is None:
        return str(process.state)
    return STALE if is_stale(row.state, row.report_age_seconds) else row.state


def _row(
    job: str, process: Process | None, row: JobRow | None, unpublished: Unpublished | None = None
) -> dict[str, Value]:
    progress = row.progress if row else {}
    return {
        "job": job,
        "state": state_of(process, row),
        **{name: progress.get(name) for name in COLUMNS[2:6]},
        "restarts": process.restarts if process else 0,
        "pid": process.process.pid if process and process.process else None,
        # Why it ended last time matters until it is up again; then, what it waits for.
        "message": process.message if process and process.state == "restarting" else progress.get("waiting_because"),
        "unpublished_changes": unpublished.changes if unpublished else None,
        "unpublished_since": unpublished.since if unpublished else None,
        BY_TOPIC: progress.get(BY_TOPIC),
    }


def _others(stack: Stack, others: list[Process]) -> list[str]:
    places = {
        "broker": stack.kafka_bootstrap,
        "api": stack.api_url,
        "dashboard": stack.dashboard_url,
        "prometheus": stack.prometheus_url,
        "alertmanager": stack.alertmanager_url,
    }
    return [
        f"{process.name} {places.get(process.name, '')} {process.state}, {process.restarts} restarts".replace("  ", " ")
        + (f": {process.message}" if process.message and process.state == "restarting" else "")
        for process in others
    ]


def _not_running(data_dir: Path, crashed: bool) -> str:
    from deployment.stack import named, not_running

    if crashed:
        return (
            f"The supervisor of {data_dir} has crashed: `weir up{named(data_dir)}` stops what it left running, and "
            "starts again."
        )
    return not_running(data_dir)
