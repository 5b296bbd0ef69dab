"""usage that an audit proved → invoices of a month: a batch application that ends.

It may run beside all other applications, beside another close and beside audits. If it is killed, the next one issues
what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from jobs.audit.application import audited
from jobs.audit.config import AuditConfig
from jobs.audit.recompute.basis import Scope
from jobs.audit.run import NotBilledError
from jobs.close.issue import Terms
from jobs.close.run import REFUSED, Close
from jobs.runtime.environment import Environment
from jobs.runtime.errors import ExitStatus, Refused
from jobs.runtime.postgres.schema import refuse_other_schema
from jobs.runtime.postgres.unavailable import remedy
from metering.instants import Clock

log = structlog.get_logger()
NAME = "close"


def run(
    terms: Terms, where: Environment, clock: Clock, accounts: Sequence[str] = (), *, is_dry_run: bool = False
) -> ExitStatus:
    """Close a month and log each invoice; STOPPED where no account was refused."""
    config = AuditConfig(
        driver_memory_mib=terms.config.driver_memory_mib, billing_wait_seconds=terms.config.billing_wait_seconds
    )

    def audit(scope: Scope) -> bool:
        return all(check.holds for check in audited(config, where, scope, clock, appends=True))

    refused = 0
    try:
        refuse_other_schema(where.postgres_url)
        close = Close(where.postgres_url, terms, audit, accounts, is_dry_run, lambda text: log.info(text, job=NAME))
        for row in close.run():
            is_refused = row["outcome"] == REFUSED
            refused += is_refused
            (log.error if is_refused else log.info)("closed" if not is_refused else "refused", job=NAME, **row)
    except Refused as error:
        log.error("refused to go on", job=NAME, reason=str(error))
        return ExitStatus.REFUSED
    except NotBilledError as error:
        log.error("billing does not get on", job=NAME, reason=str(error))
        return ExitStatus.CRASHED
    except Exception as error:
        log.exception("crashed", job=NAME, **({"do": advice} if (advice := remedy(error)) else {}))
        return ExitStatus.CRASHED
    if refused:
        log.error("not everybody is closed", job=NAME, refused=refused)
        return ExitStatus.CRASHED
    return ExitStatus.STOPPED
