"""Windows that were shown closed stay closed when the grace becomes longer: until when they were, in one place."""

from alembic import op

revision = "0015"
down_revision = "0014"

# Until the first batch under other rules both the old and the new ones count, as they do in that batch.
SCHEMA = """
ALTER TABLE rules ADD COLUMN closed_before timestamptz;
COMMENT ON COLUMN rules.closed_before IS
    'What ended by then was shown closed under earlier rules: what reaches it from this row on is a straggler.';

CREATE VIEW closed_usage AS
SELECT positions.frontier,
       greatest(positions.frontier - least(configured.grace, kept.grace), kept.closed_before) AS closed_until
FROM positions
LEFT JOIN jobs USING (job)
CROSS JOIN LATERAL (SELECT make_interval(secs => (jobs.config ->> 'grace_seconds')::float8) AS grace) AS configured
LEFT JOIN LATERAL (
    SELECT make_interval(secs => (rules.rules ->> 'grace_seconds')::float8) AS grace, rules.closed_before
    FROM rules WHERE rules.job = positions.job ORDER BY first_position DESC LIMIT 1
) AS kept ON true
WHERE positions.job = 'billing' AND positions.input = 'usage';
COMMENT ON VIEW closed_usage IS
    'How far usage is billed (frontier); windows that end at closed_until or before are closed.';
"""


def upgrade() -> None:
    """Add both."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove them again."""
    op.execute("DROP VIEW closed_usage; ALTER TABLE rules DROP COLUMN closed_before")
