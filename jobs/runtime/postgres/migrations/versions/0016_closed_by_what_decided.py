"""What is closed goes by the grace that decided last: one that a driver only started with closes nothing."""

from alembic import op

revision = "0016"
down_revision = "0015"

_VIEW = """
CREATE OR REPLACE VIEW closed_usage AS
SELECT positions.frontier, greatest({by_grace}, kept.closed_before) AS closed_until
FROM positions
LEFT JOIN jobs USING (job)
CROSS JOIN LATERAL (SELECT make_interval(secs => (jobs.config ->> 'grace_seconds')::float8) AS grace) AS configured
LEFT JOIN LATERAL (
    SELECT make_interval(secs => (rules.rules ->> 'grace_seconds')::float8) AS grace, rules.closed_before
    FROM rules WHERE rules.job = positions.job ORDER BY first_position DESC LIMIT 1
) AS kept ON true
WHERE positions.job = 'billing' AND positions.input = 'usage';
"""

# A database that kept no rules has the configuration alone, until its next batch.
BY_WHAT_DECIDED = "positions.frontier - coalesce(kept.grace, configured.grace)"
BY_BOTH = "positions.frontier - least(configured.grace, kept.grace)"


def upgrade() -> None:
    """Make the view anew."""
    op.execute(_VIEW.format(by_grace=BY_WHAT_DECIDED))


def downgrade() -> None:
    """Make it as it was."""
    op.execute(_VIEW.format(by_grace=BY_BOTH))
