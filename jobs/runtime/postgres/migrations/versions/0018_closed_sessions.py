"""Which sessions are closed, in one place: by the gap that decided last, not by one that a driver only started with."""

from alembic import op

revision = "0018"
down_revision = "0017"

# A database that kept no gap has the configuration alone, until its next batch.
SCHEMA = """
CREATE VIEW closed_sessions AS
SELECT positions.frontier,
       greatest(positions.frontier - coalesce(kept.gap, configured.gap), kept.closed_before) AS closed_before
FROM positions
LEFT JOIN jobs USING (job)
CROSS JOIN LATERAL (SELECT make_interval(secs => (jobs.config ->> 'session_gap_seconds')::float8) AS gap) AS configured
LEFT JOIN LATERAL (
    SELECT gap, closed_before FROM session_gaps ORDER BY first_position DESC LIMIT 1
) AS kept ON true
WHERE positions.job = 'sessionization' AND positions.input = 'journal';
COMMENT ON VIEW closed_sessions IS
    'How far sessions are made (frontier); those whose last event is older than closed_before are closed.';
"""


def upgrade() -> None:
    """Create the view."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute("DROP VIEW closed_sessions")
