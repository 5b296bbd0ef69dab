"""Invoices and audits have the number of the last entry of the activity log before the catalog was read."""

from alembic import op

revision = "0077"
down_revision = "0075"


def upgrade() -> None:
    """Those of before have none: whether the catalog has changed since is not known."""
    op.execute(
        "ALTER TABLE invoices ADD COLUMN activity_number bigint;"
        "COMMENT ON COLUMN invoices.activity_number IS"
        " 'The last entry of the activity log when the catalog was read; later ones may change fees. No hash has it.';"
        "ALTER TABLE audits ADD COLUMN activity_number bigint;"
        "COMMENT ON COLUMN audits.activity_number IS"
        " 'The last entry of the activity log when the audit began. A month that is changed by later ones is unproved.'"
    )


def downgrade() -> None:
    """Remove it; the hashes do not contain it."""
    op.execute("ALTER TABLE invoices DROP COLUMN activity_number; ALTER TABLE audits DROP COLUMN activity_number")
