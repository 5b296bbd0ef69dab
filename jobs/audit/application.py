"""journal, usage and Postgres → signed rows of usage and a row of `audits`: a batch application that ends.

It may run beside all other applications and beside another audit. If it is killed, the next one does what is left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import structlog
from confluent_kafka.admin import AdminClient

from jobs.audit.check import Check
from jobs.audit.check_rows import check_row
from jobs.audit.compare.conservation import conservation
from jobs.audit.config import AuditConfig
from jobs.audit.recompute.basis import Scope
from jobs.audit.run import Audit, NotBilledError
from jobs.audit.tables.audit_record import record_audit
from jobs.runtime.delta.object_store import spark_settings
from jobs.runtime.environment import Environment
from jobs.runtime.errors import ExitStatus, Refused
from jobs.runtime.postgres.unavailable import remedy
from jobs.runtime.spark import SHUFFLE_PARTITIONS, spark_session
from metering.instants import Clock

log = structlog.get_logger()
NAME = "audit"


def run(config: AuditConfig, where: Environment, scope: Scope, clock: Clock, *, appends: bool) -> ExitStatus:
    """Audit once and log each check; STOPPED where every difference had a known cause and all checks hold."""

    def prove() -> ExitStatus:
        found = audited(config, where, scope, clock, appends=appends)
        wrong = [check.check for check in found if not check.holds]
        if wrong:
            log.error("not proved", job=NAME, checks=wrong)
            return ExitStatus.CRASHED
        log.info("proved", job=NAME, corrected=sum(check.corrected for check in found))
        return ExitStatus.STOPPED

    return with_errors_logged(NAME, prove)


def with_errors_logged(job: str, work: Callable[[], ExitStatus]) -> ExitStatus:
    """Do the work of a batch application; the status of an error that ended it, which is logged."""
    try:
        return work()
    except Refused as error:
        log.error("refused to go on", job=job, reason=str(error))
        return ExitStatus.REFUSED
    except NotBilledError as error:
        log.error("billing does not get on", job=job, reason=str(error))
        return ExitStatus.CRASHED
    except Exception as error:
        log.exception("crashed", job=job, **({"do": advice} if (advice := remedy(error)) else {}))
        return ExitStatus.CRASHED


def parts_at_once(settings: Mapping[str, str], known_cores: int) -> int:
    """How many parts of the keys are recomputed at once: one for each core, also of executors that are not there
    yet.
    """
    executors_and_cores = [int(settings.get(f"spark.executor.{name}", 1)) for name in ("instances", "cores")]
    return max(SHUFFLE_PARTITIONS, known_cores, executors_and_cores[0] * executors_and_cores[1])


def audited(config: AuditConfig, where: Environment, scope: Scope, clock: Clock, *, appends: bool) -> list[Check]:
    """Audit once, and log each check. Raises Refused, and NotBilledError where billing does not get on."""
    session = spark_session(
        f"weir-{NAME}",
        where.jars,
        master=None if where.submitted else "local[2]",
        memory_mib=config.driver_memory_mib,
        conf={**spark_settings(where.tables, os.environ), "spark.log.level": "ERROR"},
    )
    settings = dict(session.sparkContext.getConf().getAll())
    parts = parts_at_once(settings, session.sparkContext.defaultParallelism)
    session.conf.set("spark.sql.shuffle.partitions", str(parts))
    admin = AdminClient(where.kafka.librdkafka())
    audit = Audit(
        session,
        where.tables,
        where.postgres_url,
        clock,
        scope,
        appends=appends,
        wait_seconds=config.billing_wait_seconds,
        tell=lambda text: log.info(text, job=NAME),
    )
    found = []
    try:
        for check in record_audit(audit, lambda: [conservation(where.tables, where.kafka, admin, scope.since)]):
            checked = dict(check_row(check))
            (log.info if check.holds else log.error)("examined", job=NAME, **checked)
            found.append(check)
    finally:
        session.stop()
    return found
