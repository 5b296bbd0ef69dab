"""Which failures are no record's fault, and who asked for a record to be skipped."""

from alembic import op

revision = "0014"
down_revision = "0013"

SCHEMA = """
ALTER TABLE attempts ADD COLUMN blameless boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN attempts.blameless IS
    'What fails from now on is no record''s fault: each was judged, or the driver waits or was asked to end.';
ALTER TABLE isolated_records ADD COLUMN asked_by text;
COMMENT ON COLUMN isolated_records.asked_by IS 'Who skipped it; null where ingestion found it by itself.';
"""


def upgrade() -> None:
    """Add both columns."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove them again."""
    op.execute("ALTER TABLE attempts DROP COLUMN blameless; ALTER TABLE isolated_records DROP COLUMN asked_by")
