"""How far accepted events are published again in the order of event time (`events.ordered`)."""

from alembic import op

revision = "0123"
down_revision = "0121"


def upgrade() -> None:
    """One row while the topic is wanted; all but the first two columns are null until it begins."""
    op.execute("""
    CREATE TABLE ordered_events (
        topic text PRIMARY KEY,
        wanted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        next_position bigint,
        input_table bigint,
        row_before bigint,
        watermark timestamptz,
        waiting_from bigint,
        sequence bigint,
        sent_generation bigint,
        sent_event_time timestamptz,
        sent_lsn bigint,
        waits jsonb NOT NULL DEFAULT '[]'
    )
    """)


def downgrade() -> None:
    """Events are not published again from then on."""
    op.execute("DROP TABLE ordered_events")
