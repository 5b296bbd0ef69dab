"""A removal of a topic counts once it was looked at again, after the API has stopped writing to the topic."""

from alembic import op

revision = "0120"
down_revision = "0119"


def upgrade() -> None:
    """What an earlier release has stored counts as before."""
    op.execute("ALTER TABLE topic_removals ADD COLUMN checked_at timestamptz")
    op.execute("UPDATE topic_removals SET checked_at = removed_at")


def downgrade() -> None:
    """Withdraw what was not looked at again: the earlier release would take it for finished."""
    op.execute("""
    UPDATE topic_removals SET withdrawn_at = clock_timestamp()
    WHERE checked_at IS NULL AND ended_at IS NULL AND withdrawn_at IS NULL
    """)
    op.execute("ALTER TABLE topic_removals DROP COLUMN checked_at")
