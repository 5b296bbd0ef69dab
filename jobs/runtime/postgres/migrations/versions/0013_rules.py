"""What decides, with the position from which it holds: a change never decides the past again."""

from alembic import op

revision = "0013"
down_revision = "0012"

SCHEMA = """
CREATE TABLE rules (
    job            text NOT NULL,
    first_position bigint NOT NULL CHECK (first_position > 0),
    rules          jsonb NOT NULL,
    since          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job, first_position)
);
COMMENT ON TABLE rules IS
    'The deciding fields of a job that writes to Postgres, written with the first batch that they decided.';
COMMENT ON COLUMN rules.first_position IS
    'The lsn of the first input row that they decided. What held before the first entry of a job is unknown, unless 1.';
"""


def upgrade() -> None:
    """Create the table; the next batch of a job fills it."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute("DROP TABLE rules")
