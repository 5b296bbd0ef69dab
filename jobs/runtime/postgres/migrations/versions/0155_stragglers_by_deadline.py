"""What waited and was billed at its deadline is found by the deadline: a close asks for it of each account."""

from alembic import op

revision = "0155"
down_revision = "0154"
is_expansion = True


def upgrade() -> None:
    """Add an index of what has waited; of most stragglers nothing waits, so it is small."""
    op.execute(
        "CREATE INDEX stragglers_by_deadline ON stragglers (hold_until)"
        " WHERE hold_until IS NOT NULL AND settled > 0 AND decided_lsn IS NULL"
    )


def downgrade() -> None:
    """Remove it again."""
    op.execute("DROP INDEX stragglers_by_deadline")
