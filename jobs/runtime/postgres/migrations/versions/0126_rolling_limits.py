"""Limits may be of a period that rolls: the last 2 to 168 whole hours of UTC."""

from alembic import op

revision = "0126"
down_revision = "0125"

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


def _checked(periods: str) -> None:
    for table in ("catalog.limits", "threshold_changes"):
        op.execute(CHECKED.format(table=table, name=table.rpartition(".")[2], periods=periods))


def upgrade() -> None:
    """Allow them; the limits that there are keep their meaning and their thresholds."""
    _checked(PERIODS)
    op.execute(COLUMNS)


def downgrade() -> None:
    """Remove what was decided of them."""
    op.execute(COLUMNS_BEFORE)
    _checked(PERIODS_BEFORE)
