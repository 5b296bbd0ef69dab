"""Consumers whose key names many accounts acknowledge, too: the list is in the key as a digest."""

from alembic import op

revision = "0118"
down_revision = "0115"


def upgrade() -> None:
    """An entry of an index has 2,704 bytes at most, and the names of some hundred accounts have more."""
    op.execute("""
    ALTER TABLE correction_consumers
        ADD COLUMN accounts_digest text NOT NULL GENERATED ALWAYS AS (md5(of_accounts)) STORED,
        DROP CONSTRAINT correction_consumers_pkey,
        ADD PRIMARY KEY (consumer, accounts_digest)
    """)


def downgrade() -> None:
    """Remove what does not fit into the earlier key: those consumers could not have acknowledged."""
    op.execute("DELETE FROM correction_consumers WHERE octet_length(consumer) + octet_length(of_accounts) > 2600")
    op.execute("""
    ALTER TABLE correction_consumers
        DROP CONSTRAINT correction_consumers_pkey,
        DROP COLUMN accounts_digest,
        ADD PRIMARY KEY (consumer, of_accounts)
    """)
