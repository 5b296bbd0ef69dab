"""`catalog.effective_prices_due.spread_to`: notes about a plan or everybody become notes of accounts in pieces.

In one statement they could not be above about a million accounts: it was cancelled for its time, again and again.
And notes of changes are found by when they were noted, so that a fold takes those that wait longest.
"""

from alembic import op

revision = "0141"
down_revision = "0137"


def upgrade() -> None:
    """No row is written: a note has not been spread at all."""
    op.execute("ALTER TABLE catalog.effective_prices_due ADD COLUMN spread_to text NOT NULL DEFAULT ''")
    op.execute("DROP INDEX catalog.effective_prices_due_by_instant")
    op.execute("CREATE INDEX effective_prices_due_by_instant ON catalog.effective_prices_due (due_at, noted_at)")


def downgrade() -> None:
    """The rest of a note is spread from its beginning."""
    op.execute("DROP INDEX catalog.effective_prices_due_by_instant")
    op.execute("CREATE INDEX effective_prices_due_by_instant ON catalog.effective_prices_due (due_at)")
    op.execute("ALTER TABLE catalog.effective_prices_due DROP COLUMN spread_to")
