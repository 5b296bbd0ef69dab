"""`python -m jobs NAME --config FILE`: run one application."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from datetime import date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import psycopg
import structlog
import typer
from pydantic import ValidationError

from jobs.audit.period import Last, OccurredTo, OneDay, ReceivedFrom, period
from jobs.close.month import (
    AccountOption,
    AllowOption,
    DryRunOption,
    ReasonOption,
    checked_allowed,
    last_month,
    month_of,
)
from jobs.config_files import validated
from jobs.logs import log_as_json, log_for_people
from jobs.runtime.environment import Environment, variable_sentence
from jobs.runtime.errors import ExitStatus, Fenced, Refused
from jobs.runtime.postgres.address import SCHEMA_VARIABLE, in_schema
from jobs.runtime.postgres.reader_role import PASSWORD_VARIABLE
from jobs.runtime.postgres.slot_log import slot_log_risk
from jobs.runtime.unreachable import NO_ADDRESS, database_sentence, place
from metering.vocabulary import End, Job

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
log = structlog.get_logger()
Config = Annotated[Path | None, typer.Option("--config", help="YAML file; the defaults when left out.")]


def environment() -> Environment:
    """Where this process runs, from `WEIR_*`. Raises SystemExit that names what is missing."""
    try:
        return Environment.read(os.environ)
    except ValidationError as error:
        problems = map(variable_sentence, error.errors())
        typer.echo(f"{'; '.join(problems)}. `weir up` and the chart set what a driver needs.", err=True)
        raise SystemExit(ExitStatus.BAD_CONFIGURATION) from None


def _run(name: str, config_file: Path | None) -> ExitStatus:
    from jobs.runtime.clock import MachineClock
    from jobs.runtime.postgres.exits import record_exit
    from jobs.runtime.postgres.unavailable import remedy
    from jobs.runtime.run import run
    from metering.vocabulary import Reason
    from monitoring.exposed import init_labels  # the other commands need neither metrics nor Spark
    from monitoring.instruments import serve

    job = importlib.import_module(f"jobs.{name}.pipeline").JOB
    try:
        config = validated(job.config, config_file) if config_file else job.config()
    except ValueError as error:
        typer.echo(str(error), err=True)
        return ExitStatus.BAD_CONFIGURATION
    where = environment()
    (log_as_json if where.submitted else log_for_people)()
    reasons, meters = [reason.value for reason in Reason], [meter.name for meter in config.declared]
    init_labels(name, reasons=reasons, meters=meters, version=version("weir"))
    serve(where.metrics_port, where.metrics_host, where.metrics_token)
    try:
        run(job, config, where, MachineClock())
    except Fenced as error:
        record_exit(where.postgres_url, name, End.FENCED, str(error))
        log.error("fenced: another driver of this job has taken over", job=name, reason=str(error))
        return ExitStatus.FENCED
    except Refused as error:
        record_exit(where.postgres_url, name, End.REFUSED, str(error))
        log.error("refused to go on", job=name, reason=str(error))
        return ExitStatus.REFUSED
    except Exception as error:
        crash = "; ".join([*getattr(error, "__notes__", ()), f"{type(error).__name__}: {error}"])
        record_exit(where.postgres_url, name, End.CRASHED, crash)
        log.exception("crashed", job=name, **({"do": advice} if (advice := remedy(error)) else {}))
        return ExitStatus.CRASHED
    return ExitStatus.STOPPED


def _command(name: str) -> None:
    def command(config: Config = None) -> None:
        _end(_run(name, config))

    app.command(name, help=f"Run {name} until it is asked to stop.")(command)


def _end(status: ExitStatus) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread that waits for a dead JVM must not keep a fenced driver alive.
    os._exit(status)


for _job in Job:
    _command(_job.value)


@app.command()
def audit(
    *,
    config: Config = None,
    start: ReceivedFrom = None,
    end: OccurredTo = None,
    day: OneDay = None,
    last: Last = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what differs, and change nothing.")] = False,
) -> None:
    """Recompute everything from the journal, append corrections where the cause is known, and prove the rest.

    Exit status 0 when every difference had a known cause and all checks hold.
    """
    from jobs.audit.application import run
    from jobs.audit.config import AuditConfig
    from jobs.audit.recompute.basis import Scope
    from jobs.runtime.clock import MachineClock

    clock = MachineClock()
    scope = Scope(*period(start, end, day, last, clock.now()))
    try:
        given = validated(AuditConfig, config) if config else AuditConfig()
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(ExitStatus.BAD_CONFIGURATION) from None
    where = environment()
    (log_as_json if where.submitted else log_for_people)()
    _end(run(given, where, scope, clock, appends=not dry_run))


@app.command()
def close(
    *,
    config: Config = None,
    month: Annotated[
        date | None,
        typer.Option("--month", parser=month_of, metavar="YYYY-MM", help="Default: the month before this one, in UTC."),
    ] = None,
    account: AccountOption = None,
    allow: AllowOption = None,
    reason: ReasonOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Close a month, as `weir close`: issue the invoices of what an audit has proved. It audits the month if none has.

    Exit status 0 when no account was refused.
    """
    from jobs.close.application import NAME, run
    from jobs.close.config import CloseConfig
    from jobs.close.issue import Terms
    from jobs.runtime.clock import MachineClock

    clock = MachineClock()
    try:
        given = validated(CloseConfig, config) if config else CloseConfig()
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(ExitStatus.BAD_CONFIGURATION) from None
    allowed = checked_allowed(allow, reason)
    where = environment()
    (log_as_json if where.submitted else log_for_people)()
    terms = Terms(given, month or last_month(clock.now()), clock.now(), NAME, reason, allowed)
    _end(run(terms, where, clock, account or (), is_dry_run=dry_run))


@app.command()
def rebuild(
    application: Annotated[str, typer.Argument(help="billing or sessionization")],
    *,
    config: Config = None,
    yes: Annotated[bool, typer.Option("--yes", help="All rows of its tables are replaced.")] = False,
) -> None:
    """Make the tables of billing or sessionization again, as `weir rebuild`; `--config` is that application's."""
    from jobs.rebuild.run import PLANS, Rebuild

    if application not in PLANS or not yes:
        typer.echo(f"Name one of {', '.join(PLANS)}, and --yes: all rows of its tables are replaced.", err=True)
        raise SystemExit(ExitStatus.BAD_CONFIGURATION)
    job = Job(application)
    try:
        given = validated(PLANS[job].job.config, config) if config else None
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(ExitStatus.BAD_CONFIGURATION) from None
    where = environment()
    (log_as_json if where.submitted else log_for_people)()
    try:
        made = Rebuild(job, where.tables, where.postgres_url, given, lambda text: log.info(text, job=job.value)).run()
    except Refused as error:
        log.error("refused to go on", job=job.value, reason=str(error))
        _end(ExitStatus.REFUSED)
    except Exception:
        log.exception("crashed; nothing was changed", job=job.value)
        _end(ExitStatus.CRASHED)
    else:
        log.info("made again", job=job.value, **made)
        _end(ExitStatus.STOPPED)


DownTo = Annotated[
    str | None,
    typer.Option(
        "--down-to",
        metavar="REVISION",
        help="Bring it back to an earlier version's instead: what `alembic_version` had before the upgrade.",
    ),
]


def _newest_batch() -> datetime | None:
    """Raises Refused without WEIR_TABLES."""
    from jobs.runtime.delta.newest_batch import newest_batch
    from jobs.runtime.tables_address import tables_problem

    if not (tables := os.environ.get("WEIR_TABLES")):
        raise Refused("WEIR_TABLES is not set: an earlier version would read the tables there, too")
    if problem := tables_problem(tables):
        raise Refused(f"WEIR_TABLES {problem}")
    return newest_batch(tables.rstrip("/"))


@app.command()
def migrate(down_to: DownTo = None) -> None:
    """Bring the database's schema to this version's; WEIR_DASHBOARD_PASSWORD becomes the dashboard role's password.

    With `--down-to` an earlier version can be started again, unless something is stored that it would read wrongly: in
    the database, or in the tables at WEIR_TABLES. The applications must be stopped.
    """
    # A driver starts with a seventh less to import, and a migration with a half less.
    from sqlalchemy.exc import DBAPIError

    from jobs.runtime.postgres.downgrade import downgrade
    from jobs.runtime.postgres.schema import migrate as migrate_database

    url = os.environ.get("WEIR_POSTGRES_URL")
    if not url:
        typer.echo(
            "WEIR_POSTGRES_URL is not set: the address of the database, postgresql://user:password@host:5432/database",
            err=True,
        )
        raise SystemExit(ExitStatus.BAD_CONFIGURATION)
    if place(url) is None:
        typer.echo(f"WEIR_POSTGRES_URL {NO_ADDRESS}.", err=True)
        raise SystemExit(ExitStatus.BAD_CONFIGURATION)
    try:
        url = in_schema(url, os.environ.get(SCHEMA_VARIABLE))
    except ValueError as error:
        typer.echo(f"{SCHEMA_VARIABLE} {error}.", err=True)
        raise SystemExit(ExitStatus.BAD_CONFIGURATION) from None
    try:
        if down_to is not None:
            for loss in downgrade(url, down_to, _newest_batch()):
                typer.echo(f"Lost: {loss}.", err=True)
            typer.echo(f"The database has the schema {down_to}. Start the version that it belongs to.")
            return
        migrate_database(url, os.environ.get(PASSWORD_VARIABLE))
    except Refused as refusal:
        typer.echo(f"The database was not migrated: {refusal}.", err=True)
        raise SystemExit(ExitStatus.BAD_CONFIGURATION) from None
    except (DBAPIError, psycopg.Error) as error:
        if (sentence := database_sentence(error, url)) is None:
            raise
        typer.echo(f"{sentence} The schema is as it was.", err=True)
        raise SystemExit(ExitStatus.CRASHED) from None
    with suppress(psycopg.Error):  # the schema is up to date all the same
        if risk := slot_log_risk(url):
            typer.echo(risk, err=True)


@app.command()
def check(config: Config = None) -> None:
    """Check a file with the configuration of all jobs, and start nothing."""
    from jobs.stack import load_stack_config

    try:
        load_stack_config(config)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(ExitStatus.BAD_CONFIGURATION) from None
    typer.echo("The configuration is valid.")


if __name__ == "__main__":
    app()
