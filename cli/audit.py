"""`weir audit`: each promise, how much of it was examined, and what is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from cli.progress import telling
from jobs.audit.check_rows import PRINTED, check_rows, printed_rows
from jobs.audit.period import Last, OccurredTo, OneDay, ReceivedFrom, Unpriced, period

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from deployment.stack import Deployment
    from jobs.audit.check import Check
    from jobs.audit.recompute.basis import Scope

JARS_VARIABLE = "WEIR_JARS"
EARLIER = {"detail": "says"}


def audit(
    *,
    start: ReceivedFrom = None,
    end: OccurredTo = None,
    day: OneDay = None,
    last: Last = None,
    unpriced: Unpriced = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what differs, and change nothing.")] = False,
    memory_mib: Annotated[int, typer.Option(min=512, help="Java heap, in MiB.")] = 1024,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Recompute everything from the journal, append corrections where the cause is known, and prove the rest.

    Differences with a known cause (an event accepted twice, a completion that came too late for its request, a price
    that came late) are corrected by signed rows of usage. The command returns when these are in the windows. Any
    other difference is reported and left as it is. --from selects by time of receipt, --to by event time; both are
    whole minutes. Requests with a part from before --from are left to an audit without it. Each audit but a dry run
    is kept in the table audits and shown on the dashboard.

    Exit status 0 if every difference had a known cause, else 1; if nothing could be examined it says why. The
    applications may run meanwhile: the audit reads fixed versions of the tables and one snapshot of the database.
    """
    from deployment.asking import asking_database
    from deployment.stack import running_deployment
    from jobs.audit.recompute.basis import Scope
    from jobs.audit.recompute.unpriced_usage import unpriced_from
    from jobs.runtime.clock import MachineClock

    scope = Scope(*period(start, end, day, last, MachineClock().now(), unpriced=unpriced))
    stack = running_deployment(data_dir)
    if unpriced:
        with asking_database(stack.postgres_url):
            since = unpriced_from(stack.postgres_url, stack.tables)
        if since is None:
            typer.echo("No unpriced usage has got a price since: nothing to audit.", err=True)
            print_rows([], PRINTED, form, earlier=EARLIER)
            return
        scope = Scope(since)
    found = audited(stack, scope, memory_mib, appends=not dry_run)
    print_rows(printed_rows(check_rows(found)), PRINTED, form, earlier=EARLIER)
    if not all(check.holds for check in found):
        raise typer.Exit(1)


def audited(
    stack: Deployment,
    scope: Scope,
    memory_mib: int = 1024,
    *,
    appends: bool = True,
    tell: Callable[[str], None] | None = None,
) -> list[Check]:
    """Audit a stack; what was promised. `tell` gets the progress, where another command shows it.

    Raises CannotRun where nothing could be examined.
    """
    from deployment.asking import asking_database, asking_kafka

    with asking_database(stack.postgres_url), asking_kafka(stack.kafka_bootstrap) as admin:
        shown = telling("Auditing:") if tell is None else nullcontext(tell)
        with shown as progress:
            return list(_checks(stack, scope, admin, memory_mib, progress, appends=appends))


def _checks(
    stack: Deployment,
    scope: Scope,
    admin: AdminClient,
    memory_mib: int,
    tell: Callable[[str], None],
    *,
    appends: bool,
) -> Iterator[Check]:
    from deployment.errors import CannotRun
    from deployment.kafka_client import kafka_access
    from jobs.audit.compare.conservation import conservation
    from jobs.audit.run import Audit, NotBilledError
    from jobs.audit.tables.audit_record import record_audit
    from jobs.audit.tables.database import connected
    from jobs.runtime.clock import MachineClock
    from jobs.runtime.delta.object_store import spark_settings
    from jobs.runtime.errors import Refused
    from jobs.runtime.spark import spark_session

    access = kafka_access(stack.kafka_bootstrap)
    conf = {**spark_settings(stack.tables, os.environ), "spark.log.level": "ERROR"}
    # An unreachable database is reported at once, not after Spark has started.
    with connected(stack.postgres_url) as database:
        database.execute("SELECT FROM audits LIMIT 0")
    tell("Spark starts")
    session = spark_session("weir-audit", _jars(), master="local[2]", memory_mib=memory_mib, conf=conf)
    audit = Audit(session, stack.tables, stack.postgres_url, MachineClock(), scope, appends=appends, tell=tell)
    try:
        for check in record_audit(audit, lambda: [conservation(stack.tables, access, admin, scope.since)]):
            tell(f"{check.check}, {check.examined:,} examined, {check.found:,} found")
            yield check
    except (NotBilledError, Refused) as error:
        raise CannotRun(str(error)) from error
    finally:
        session.stop()


def _jars() -> Path:
    if given := os.environ.get(JARS_VARIABLE):
        return Path(given)
    from laptop.class_archive import submit_arguments
    from laptop.jars import connector_jars
    from laptop.java import find_java

    find_java()
    os.environ.update(submit_arguments())
    return connector_jars()
