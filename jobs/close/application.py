"""usage that an audit proved → invoices of a month: a batch application that ends.

It may run beside all other applications, beside another close and beside audits. If it is killed, the next one issues
what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from jobs.audit.application import audited, with_errors_logged
from jobs.audit.recompute.basis import Scope
from jobs.close.issue import Terms
from jobs.close.run import NO_ACCOUNT, NOT_INVOICED, REFUSED, Close
from jobs.close.series import InvoiceSeries
from jobs.runtime.environment import Environment
from jobs.runtime.errors import ExitStatus
from jobs.runtime.postgres.schema_check import refuse_other_schema
from metering.instants import Clock

log = structlog.get_logger()
NAME = "close"


def run(
    terms: Terms, where: Environment, clock: Clock, accounts: Sequence[str] = (), *, is_dry_run: bool = False
) -> ExitStatus:
    """Close a month and log each invoice; STOPPED where no account was refused."""

    def audit(scope: Scope) -> bool:
        return all(check.holds for check in audited(terms.config, where, scope, clock, appends=True))

    def close() -> ExitStatus:
        refuse_other_schema(where.postgres_url)
        closing = Close(
            where.postgres_url,
            terms,
            audit,
            accounts,
            is_dry_run,
            lambda text: log.info(text, job=NAME),
            series=InvoiceSeries(where.tables, terms.config.issuer),
        )
        refused = 0
        for row in closing.run():
            refused += row["outcome"] == REFUSED
            if row["outcome"] == REFUSED:
                log.error("refused", job=NAME, **row)
            elif row["outcome"] in {NO_ACCOUNT, NOT_INVOICED}:
                log.warning("left out", job=NAME, **row)
            else:
                log.info("closed", job=NAME, **row)
        if refused:
            log.error("not everybody is closed", job=NAME, refused=refused)
            return ExitStatus.CRASHED
        return ExitStatus.STOPPED

    return with_errors_logged(NAME, close)
