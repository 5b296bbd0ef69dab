"""Until which row of usage an audit compared what is billed, and with which row each day last changed."""

from alembic import op

revision = "0058"
down_revision = "0057"

SCHEMA = """
ALTER TABLE audits ADD COLUMN billed_to bigint CHECK (billed_to > 0);
COMMENT ON COLUMN audits.billed_to IS
    'Usage before this lsn was billed when the audit compared it with windows and days. Null: an earlier release.';
ALTER TABLE usage_days ADD COLUMN next_position bigint;
COMMENT ON COLUMN usage_days.next_position IS
    'Position of billing with the last change of the quantity. Null: an earlier release changed it.';
"""


def upgrade() -> None:
    """Add both. What was audited before proves no invoice."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove them again."""
    op.execute("ALTER TABLE usage_days DROP COLUMN next_position; ALTER TABLE audits DROP COLUMN billed_to")
