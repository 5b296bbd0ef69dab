"""`weir journal`: the conservation equation of every partition (`--summary`), and commands that change its outcome.

received = next offset - first offset - absent - lost = accepted + rejected + duplicate + conflict + what `weir retain`
has removed; the rest, the residual, must be 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

import typer

from cli.accept_loss import accept_loss
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, Row, print_rows
from cli.restamp import restamp
from cli.skip import skip
from jobs.audit.compare.partition_balance import Partition, PartitionRange, RowKey, residual
from metering.vocabulary import Disposition

COLUMNS = (
    "topic",
    "partition",
    "first_offset",
    "next_offset",
    "absent",
    *Disposition,
    "accepted_events",
    "redriven",
    "removed",
    "lost",
    "residual",
)
EARLIER = {"redriven": "came_back"}
COLUMNS_BY_REASON = (*COLUMNS[:2], "reason", *COLUMNS[2:])


class SummaryKey(StrEnum):
    """What a partition's line can be split by."""

    REASON = "reason"


def summary_rows(
    consumed: Mapping[Partition, PartitionRange],
    rows: Mapping[RowKey, int],
    *,
    by_reason: bool,
    events: Mapping[RowKey, int] | None = None,
    redriven: Mapping[Partition, int] = MappingProxyType({}),
) -> Iterator[Row]:
    """One row per partition with the keys `COLUMNS`, or per partition and reason with `COLUMNS_BY_REASON`.

    `rows` counts records per topic, partition, disposition and reason, and `events` the events in them (None: as many);
    `redriven` is how many of the accepted records are dead letters that were sent again. Split by reason, the line
    without a reason counts what needs none; offsets, absent, removed, lost and residual are the partition's, repeated
    on each of its lines. A partition that Kafka does not know any more has no range, so no residual.
    """
    accepted = Counter[Partition]()
    for (topic, partition, disposition, _), count in (rows if events is None else events).items():
        if disposition == Disposition.ACCEPTED:
            accepted[topic, partition] += count
    for topic, partition in sorted({*consumed, *((topic, number) for topic, number, _, _ in rows)}):
        mine = {key[2:]: count for key, count in rows.items() if key[:2] == (topic, partition)}
        covered = consumed.get((topic, partition))
        reasons = sorted({reason for _, reason in mine if reason is not None})
        for reason in [None, *reasons] if by_reason else [None]:
            kept = {key: count for key, count in mine.items() if not by_reason or key[1] == reason}
            yield {
                "topic": topic,
                "partition": partition,
                "reason": reason,
                "first_offset": covered.first_offset if covered else None,
                "next_offset": covered.next_offset if covered else None,
                "absent": covered.absent if covered else None,
                **{kind: sum(kept[key] for key in kept if key[0] == kind) for kind in Disposition},
                "accepted_events": accepted.get((topic, partition), 0) if reason is None else 0,
                "redriven": redriven.get((topic, partition), 0) if reason is None else 0,
                "removed": covered.removed if covered else None,
                "lost": covered.lost if covered else None,
                "residual": residual(covered, sum(mine.values())) if covered else None,
            }


journal = typer.Typer(invoke_without_command=True)
journal.command("accept-loss")(accept_loss)
journal.command("restamp")(restamp)
journal.command("skip")(skip)


@journal.callback()
def _journal(
    context: typer.Context,
    *,
    summary: Annotated[bool, typer.Option("--summary", help="The conservation equation per partition.")] = False,
    by: Annotated[SummaryKey | None, typer.Option("--by", help="Split each partition's line.")] = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show that every record has exactly one row: offsets read = absent + accepted + rejected + duplicate + conflict.

    A record that is a batch of events counts once, by its first; accepted_events counts each accepted event. Rows that
    `weir retain` removed are counted, too, but not as events. redriven counts the accepted rows that are dead letters
    sent again. `residual` is the number of missing rows (negative: surplus rows) and must be 0. Absent offsets are
    proved to hold no record. Lost offsets were deleted by Kafka's retention unread, and somebody has accepted that
    (`weir journal accept-loss`).
    """
    if context.invoked_subcommand is not None:
        return
    if not summary:
        raise typer.BadParameter("add --summary, or a command: accept-loss, restamp or skip.")
    from cli.journal_table import count_redriven, open_journal
    from deployment.asking import asking_kafka
    from deployment.stack import running_deployment
    from jobs.audit.compare.conservation import consumed_ranges, count_records_and_events, topics_read

    stack = running_deployment(data_dir)
    columns = COLUMNS_BY_REASON if by else COLUMNS
    table = open_journal(stack.tables)
    if table is None:
        print_rows([], columns, form, earlier=EARLIER)
        return
    (rows, events), back = count_records_and_events(table), count_redriven(table)
    with asking_kafka(stack.kafka_bootstrap) as admin:
        topics = topics_read(admin, rows)
    lines = summary_rows(consumed_ranges(table, topics), rows, by_reason=by is not None, events=events, redriven=back)
    print_rows(lines, columns, form, earlier=EARLIER)
