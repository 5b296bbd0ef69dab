"""With which F of billing an audit compared what is billed: what waited until F had passed a deadline came since."""

from alembic import op

revision = "0154"
down_revision = "0152"
is_expansion = True

SCHEMA = """
ALTER TABLE audits ADD COLUMN billed_frontier timestamptz;
COMMENT ON COLUMN audits.billed_frontier IS
    'Frontier of what was billed when the audit compared it. Null: an earlier release, or F was unknown.';
"""


def upgrade() -> None:
    """Add it. What was audited before proves nothing of what has waited."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute("ALTER TABLE audits DROP COLUMN billed_frontier")
