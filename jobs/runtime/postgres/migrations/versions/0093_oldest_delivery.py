"""The oldest delivery of an endpoint that waits is one step in an index: its age is a gauge."""

from alembic import op

revision = "0093"
down_revision = "0092"


def upgrade() -> None:
    """Add the index."""
    op.execute(
        "CREATE INDEX webhook_deliveries_oldest ON webhook_deliveries (endpoint, number) WHERE state = 'waiting'"
    )


def downgrade() -> None:
    """Remove it."""
    op.execute("DROP INDEX webhook_deliveries_oldest")
