"""Limits may be of a period that rolls: the last 2 to 168 whole hours of UTC."""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0126"
down_revision = "0118"

WEBHOOKS: Any = import_module("jobs.runtime.postgres.migrations.versions.0092_webhook_outbox")
THRESHOLDS: Any = import_module("jobs.runtime.postgres.migrations.versions.0098_thresholds")
MODELS: Any = import_module("jobs.runtime.postgres.migrations.versions.0108_limits_of_models")

ROLLS = "starts_with(period, 'PT')"
PERIODS = "period IN ('P1D', 'P1M') OR period ~ '^PT([2-9]|[1-9][0-9]|1[0-5][0-9]|16[0-8])H$'"
PERIODS_BEFORE = "period IN ('P1D', 'P1M')"
CHECKED = """
ALTER TABLE {table}
    DROP CONSTRAINT {name}_period_check,
    ADD CONSTRAINT {name}_period_check CHECK ({periods});
"""
# Its threshold has one state, whichever window F is in: the key needs a day that says nothing.
COLUMNS = f"""
CREATE INDEX limits_that_roll ON catalog.limits (period) WHERE {ROLLS};
ALTER TABLE threshold_changes
    ADD CONSTRAINT first_day_of_a_calendar CHECK (NOT {ROLLS} OR first_day = '1970-01-01');
"""
# A catalog that has such limits is refused before (`downgrade.USES`).
COLUMNS_BEFORE = f"""
DELETE FROM threshold_changes WHERE {ROLLS};
ALTER TABLE threshold_changes DROP CONSTRAINT first_day_of_a_calendar;
DROP INDEX catalog.limits_that_roll;
"""
CALLED = MODELS.CALLED.replace(
    "'period_start', first_day,", f"'period_start', CASE WHEN NOT {ROLLS} THEN first_day END,"
)


def _checked(periods: str) -> None:
    for table in ("catalog.limits", "threshold_changes"):
        op.execute(CHECKED.format(table=table, name=table.rpartition(".")[2], periods=periods))


def upgrade() -> None:
    """Allow them; the limits that there are keep their meaning, their thresholds and what webhooks are called about."""
    _checked(PERIODS)
    op.execute(COLUMNS)
    op.execute(MODELS.OUTBOX)
    op.execute(WEBHOOKS.TRIGGER.format(table="threshold_changes", types=THRESHOLDS.TYPES, rows=CALLED))


def downgrade() -> None:
    """Remove what was decided of them."""
    op.execute(MODELS.OUTBOX)
    op.execute(COLUMNS_BEFORE)
    _checked(PERIODS_BEFORE)
    op.execute(WEBHOOKS.TRIGGER.format(table="threshold_changes", types=THRESHOLDS.TYPES, rows=MODELS.CALLED))
