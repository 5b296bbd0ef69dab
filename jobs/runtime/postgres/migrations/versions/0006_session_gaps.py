"""Session gaps: each with the position from which it held, so that a larger one finds what it has to merge."""

from alembic import op

revision = "0006"
down_revision = "0005"

SCHEMA = """
CREATE TABLE session_gaps (
    first_position bigint PRIMARY KEY CHECK (first_position > 0),
    gap            interval NOT NULL CHECK (gap > interval '0'),
    closed_before  timestamptz,
    recorded_at    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE session_gaps IS
    'The session gap and the lsn of the first journal row from which it holds, written with the batch that it decided.';
COMMENT ON COLUMN session_gaps.closed_before IS
    'Sessions that ended earlier may have been seen closed under an earlier gap: they are retracted, never edited.';
"""


def upgrade() -> None:
    """Create the table; sessionization's first batch fills it, and merges what its gap allows."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute("DROP TABLE session_gaps")
