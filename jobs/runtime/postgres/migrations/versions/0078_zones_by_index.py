"""Zones of accounts are found by their index also in a transaction that adds the first thousands of them.

The plans of the trigger's statements are made while the table is empty, and a scan of the whole looks cheapest then.
"""

from alembic import op

revision = "0078"
down_revision = "0077"


def upgrade() -> None:
    """Let the function plan no scan of a whole table."""
    op.execute("ALTER FUNCTION catalog.keep_account_zone() SET enable_seqscan = off")


def downgrade() -> None:
    """Let it plan as the server does."""
    op.execute("ALTER FUNCTION catalog.keep_account_zone() RESET enable_seqscan")
