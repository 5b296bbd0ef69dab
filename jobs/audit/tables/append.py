"""What the audit corrects → rows of `usage`, in one commit that neither joins nor another audit can come between."""

from __future__ import annotations

from datetime import datetime

import polars as pl
import pyarrow as pa
import structlog
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from jobs.audit.recompute.corrections import CORRECTIONS
from jobs.runtime.delta.growth import missing_columns, refuse_newer, with_stored_columns
from jobs.runtime.delta.table import AFTER_COMMIT, FRONTIER, LSN, ONE_FILE_BYTES, committing, instant_of
from jobs.runtime.effective_rules import TRANSACTION
from jobs.runtime.errors import Refused
from jobs.streams import INSTANT, SCHEMA_VERSIONS, USAGE, Table

log = structlog.get_logger()
AUDIT = "audit"
"""The transaction of usage that every audit moves that appends: to the version which its commit follows."""


ERASURES = "erasures"
"""The transaction of usage that `weir forget` moves."""


class AuditedMeanwhile(RuntimeError):
    """Usage was changed since this audit's version of it. The message says how.

    Another audit's rows: they may correct what this one found. Or other meters: a row of a late contract is
    counted by the meters in effect where it is appended. Or a person was forgotten, and this one's rows have the name.
    """


def append(pinned: DeltaTable, corrections: pa.Table, logged_at: datetime) -> int:
    """Append CORRECTIONS to usage, of which `pinned` is the examined version; returns the lsn after them.

    joins may have appended meanwhile: its decisions stay, so only the lsns differ. Raises AuditedMeanwhile, after which
    nothing was written, and Refused for a table that this version must not write.
    """
    examined, joined = pinned.transaction_version(AUDIT), pinned.transaction_version(TRANSACTION)
    erased = pinned.transaction_version(ERASURES)
    usage = DeltaTable(pinned.table_uri, storage_options=pinned._storage_options)
    while True:
        usage.update_incremental()
        refuse_unfit(usage)
        if usage.transaction_version(AUDIT) != examined:
            raise AuditedMeanwhile("another audit has appended meanwhile")
        if usage.transaction_version(TRANSACTION) != joined:
            raise AuditedMeanwhile("joins has recorded other rules meanwhile")
        if usage.transaction_version(ERASURES) != erased:
            raise AuditedMeanwhile("a person was forgotten meanwhile")
        first_lsn = usage.transaction_version(LSN) or 1
        frontier = instant_of(usage.transaction_version(FRONTIER))
        rows = _numbered(corrections, first_lsn, logged_at, frontier)
        try:
            write_deltalake(
                usage,
                with_stored_columns(rows, pa.schema(usage.schema().to_arrow())),
                mode="append",
                target_file_size=ONE_FILE_BYTES,
                commit_properties=committing({LSN: first_lsn + len(rows), AUDIT: usage.version() + 1}),
                post_commithook_properties=AFTER_COMMIT,
            )
        except CommitFailedError:
            # joins commits its frontier without rows, too: the version tells, not the lsn.
            before = usage.version()
            usage.update_incremental()
            if usage.version() == before:
                raise
            log.info("joins has committed meanwhile; the rows get other numbers")
        else:
            return first_lsn + len(rows)


def refuse_unfit(usage: DeltaTable) -> None:
    """Raises Refused for usage of another version than this program's."""
    refuse_newer(usage, SCHEMA_VERSIONS[Table.USAGE])
    if missing := missing_columns(usage, USAGE):
        raise Refused(
            f"{usage.table_uri} lacks the columns {', '.join(field.name for field in missing)}: joins of this version "
            "adds them when it starts; start it, and audit again"
        )


def _numbered(corrections: pa.Table, first_lsn: int, logged_at: datetime, frontier: datetime | None) -> pa.Table:
    """CORRECTIONS as rows of usage."""
    count = len(corrections)
    made = {
        "lsn": pl.int_range(first_lsn, first_lsn + count, eager=True).to_arrow(),
        "log_date": pa.repeat(pa.scalar(logged_at.date(), pa.date32()), count),
        "logged_at": pa.repeat(pa.scalar(logged_at, INSTANT), count),
        "rules": pa.nulls(count, pa.string()),
        "frontier": pa.repeat(pa.scalar(frontier, INSTANT), count),
    }
    columns = [made[field.name] if field.name in made else corrections[field.name] for field in USAGE]
    assert len(CORRECTIONS) + len(made) == len(USAGE)
    return pa.table(columns, schema=USAGE)
