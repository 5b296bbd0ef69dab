"""`weir audit`: what was promised, each with how much of it was examined and what is not as it must be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, Row, print_rows
from cli.progress import telling
from cli.reading import FromOption, ToOption, check_range

if TYPE_CHECKING:
    from deployment.stack import Deployment
    from jobs.audit.check import Check
    from jobs.audit.pinned import Asked

COLUMNS = ("check", "holds", "examined", "found", "corrected", "says")
NOT_EXAMINED = {
    "I3": "what was produced is known to producers alone; `weir compare` asks generated traffic's truth",
    "I7": "there are no invoices yet",
    "I9": "there are no invoices yet",
}
JARS_VARIABLE = "WEIR_JARS"


def audit(
    *,
    start: FromOption = None,
    end: ToOption = None,
    day: Annotated[
        datetime | None,
        typer.Option(
            "--date",
            formats=["%Y-%m-%d"],
            help="One day (UTC): what was received from its start on, and occurred before its end.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what differs, and change nothing.")] = False,
    memory_mib: Annotated[int, typer.Option(min=512, help="Java heap, in MiB.")] = 1024,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Recompute what the journal makes, put right what is known better by now, and prove what was billed.

    What differs for a known cause (an event accepted twice, a completion that came too late for its request, a price
    that came late) gets signed rows of usage; it returns when they are in the windows. Anything else that differs is
    told, and left as it is. --from selects by the time of receipt, --to by when things occurred; both are whole
    minutes. What belongs together with something from before --from is left to an audit without it.

    Exit status 0 when whatever differed had a known cause, else 1; where nothing could be examined it says why.
    Applications run meanwhile: versions of the tables and one snapshot of the database are examined.
    """
    from deployment.asking import asking_database
    from deployment.stack import running_deployment
    from jobs.audit.pinned import Asked

    asked = Asked(*_period(start, end, day))
    stack = running_deployment(data_dir)
    with asking_database(stack.postgres_url):
        found = [*_conservation(stack), *_checks(stack, asked, memory_mib, appends=not dry_run)]
    rows = sorted([*map(_row, found), *_not_examined()], key=lambda row: int(str(row["check"])[1:]))
    print_rows(rows, COLUMNS, form)
    if not all(check.holds for check in found):
        raise typer.Exit(1)


def _period(
    start: datetime | None, end: datetime | None, day: datetime | None
) -> tuple[datetime | None, datetime | None]:
    """From --from and --to, or --date. Raises `typer.BadParameter`."""
    check_range(start, end)
    if day is None:
        if any(instant is not None and (instant.second or instant.microsecond) for instant in (start, end)):
            raise typer.BadParameter("--from and --to are whole minutes, as windows are.")
        return start, end
    if start is not None or end is not None:
        raise typer.BadParameter("--date is a period by itself: leave out --from and --to.")
    midnight = day.replace(tzinfo=UTC)
    return midnight, midnight + timedelta(days=1)


def _row(check: Check) -> Row:
    said = asdict(check)
    return {**{name: said[name] for name in COLUMNS if name in said}, "holds": check.holds}


def _not_examined() -> Iterator[Row]:
    for check, says in NOT_EXAMINED.items():
        yield {"check": check, "holds": True, "examined": 0, "found": 0, "corrected": 0, "says": says}


def _conservation(stack: Deployment) -> Iterator[Check]:
    """I2, as `weir journal --summary` has it."""
    from cli.journal import summary_rows
    from cli.journal_offsets import consumed_ranges, kafka_topics
    from cli.journal_table import count_rows, open_journal
    from deployment.asking import asking_kafka
    from jobs.audit.check import Check
    from jobs.streams import EVENTS_TOPIC, CatalogTopic

    table = open_journal(stack.tables)
    rows = {} if table is None else count_rows(table)
    with asking_kafka(stack.kafka_bootstrap) as admin:
        topics = kafka_topics(admin, {EVENTS_TOPIC, *CatalogTopic, *(topic for topic, *_ in rows)})
    ranges = {} if table is None else consumed_ranges(table, topics)
    lines = list(summary_rows(ranges, rows, by_reason=False))
    wrong = [line for line in lines if line["residual"]]
    unknown = [line for line in lines if line["residual"] is None]
    says = "received = absent + accepted + rejected + duplicate + conflict + removed, in each partition"
    if unknown:
        says = f"topic {unknown[0]['topic']} is not there to be asked, and what the journal holds of it not examined"
    if wrong:
        says = f"partition {wrong[0]['partition']} of {wrong[0]['topic']} lacks {wrong[0]['residual']} rows"
    asked = sum(
        rows_of
        for (topic, partition, *_), rows_of in rows.items()
        if (topic, partition) not in {(line["topic"], line["partition"]) for line in unknown}
    )
    yield Check("I2", asked, len(wrong), says)


def _checks(stack: Deployment, asked: Asked, memory_mib: int, *, appends: bool) -> Iterator[Check]:
    from deployment.errors import CannotRun
    from jobs.audit.run import Audit, NotBilledError
    from jobs.runtime.clock import MachineClock
    from jobs.runtime.delta.object_store import spark_settings
    from jobs.runtime.errors import Refused
    from jobs.runtime.spark import spark_session

    conf = {**spark_settings(stack.tables, os.environ), "spark.log.level": "ERROR"}
    with telling("Auditing:") as tell:
        tell("Spark starts")
        session = spark_session("weir-audit", _jars(), master="local[2]", memory_mib=memory_mib, conf=conf)
        audit = Audit(session, stack.tables, stack.postgres_url, MachineClock(), asked, appends=appends, tell=tell)
        try:
            for check in audit.run():
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
