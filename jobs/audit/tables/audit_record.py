"""An audit and its row of `audits`, updated as it runs: if it is killed, the findings so far remain."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.types.json import Jsonb

from jobs.audit.check import Check
from jobs.audit.check_rows import check_rows
from jobs.audit.recompute.basis import Scope
from jobs.audit.recompute.money import Changed, added, money_by_cause, rows_by_cause
from jobs.audit.run import Audit, NotBilledError
from jobs.audit.tables.database import connected
from jobs.runtime.errors import Refused
from jobs.runtime.postgres.schema_check import refuse_other_schema
from metering.digits import EXACT
from metering.texts import encodable

MAX_FAILURE = 2_000

_BEGIN = (
    "INSERT INTO audits (received_from, occurred_to, version, activity_number)"
    " VALUES (%s, %s, %s, (SELECT coalesce(max(number), 0) FROM activity_log)) RETURNING audit_id"
)
_CHECKED = "UPDATE audits SET checks = %s, unexpected = %s WHERE audit_id = %s"
_APPENDED = "UPDATE audits SET corrected = %s, changed = %s WHERE audit_id = %s"
# An audit of a period proves no more of it than retention has left. One without a period proves all that is there.
_COMPARED = (
    "UPDATE audits SET billed_to = %s, billed_frontier = %s,"
    " received_from = CASE WHEN received_from IS NOT NULL THEN greatest(received_from, %s) END WHERE audit_id = %s"
)
_FINISH = "UPDATE audits SET finished_at = now(), is_proved = %s, failure = %s WHERE audit_id = %s"


def record_audit(audit: Audit, others: Callable[[], Iterable[Check]] = tuple) -> Generator[Check]:
    """The checks that `others` makes and then those of `audit`, written down as they come; a dry run is not.

    Raises what `Audit.run` and `others` raise, and Refused for a database of another version.
    """
    refuse_other_schema(audit.postgres_url)
    if not audit.appends:
        yield from others()
        yield from audit.run()
        return
    record = Record(audit.postgres_url, audit.scope)
    try:
        for check in others():
            record.check(check)
            yield check
        for check in replace(audit, appended=record.append, compared=record.compared).run():
            record.check(check)
            yield check
        record.finish()
    except Exception as error:
        with suppress(psycopg.Error):
            record.finish(_sentence(error))
        raise


class Record:
    """One row of `audits`."""

    def __init__(self, postgres_url: str, scope: Scope) -> None:
        self._postgres_url = postgres_url
        self._checks: list[Check] = []
        self._rows: Counter[str] = Counter()
        self._changed: Changed = {}
        with connected(postgres_url) as connection:
            begun = connection.execute(_BEGIN, [scope.since, scope.until, version("weir")]).fetchone()
        assert begun is not None
        self._audit_id: int = begun[0]

    def check(self, check: Check) -> None:
        """It has examined this."""
        self._checks.append(check)
        unexpected = {check.check: check.found - check.expected for check in self._checks if not check.holds}
        self._write(_CHECKED, Jsonb(check_rows(self._checks)), Jsonb(unexpected))

    def append(self, corrections: pa.Table) -> None:
        """It has appended these (`corrections.CORRECTIONS`) to usage."""
        self._rows.update(rows_by_cause(corrections))
        self._changed = added(self._changed, money_by_cause(corrections))
        money: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for (cause, currency), amount in sorted(self._changed.items()):
            money[cause][currency] = f"{amount.normalize(EXACT):f}"
        self._write(_APPENDED, Jsonb(dict(sorted(self._rows.items()))), Jsonb(money))

    def compared(self, billed_to: int, frontier: datetime | None, since: datetime | None) -> None:
        """It compares usage before this lsn with what is billed at this F: what changes later is not proved by it, nor
        is what was received before `since`.
        """
        self._write(_COMPARED, billed_to, frontier, since)

    def finish(self, failure: str | None = None) -> None:
        """Mark the audit as finished. It is a proof if it ended normally and every check holds."""
        is_proved = failure is None and all(check.holds for check in self._checks)
        self._write(_FINISH, is_proved, failure)

    def _write(self, statement: str, *values: Any) -> None:
        with connected(self._postgres_url) as connection:
            connection.execute(statement, [*values, self._audit_id])


def _sentence(error: Exception) -> str:
    text = str(error) if isinstance(error, Refused | NotBilledError) else f"{type(error).__name__}: {error}"
    return encodable(text, MAX_FAILURE)
