"""Losses that an operator accepted: records that Kafka's retention deleted before ingestion had read them."""

from alembic import op

revision = "0084"
down_revision = "0082"

SCHEMA = """
CREATE TABLE accepted_losses (
    topic_id      text NOT NULL,
    topic         text NOT NULL,
    partition     integer NOT NULL CHECK (partition >= 0),
    first_offset  bigint NOT NULL CHECK (first_offset >= 0),
    end_offset    bigint NOT NULL CHECK (end_offset > first_offset),
    reason        text NOT NULL CHECK (btrim(reason) <> ''),
    accepted_by   text NOT NULL,
    accepted_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    journalled_at timestamptz,
    PRIMARY KEY (topic_id, partition, first_offset, end_offset)
);
COMMENT ON TABLE accepted_losses IS
    'Offsets [first_offset, end_offset) that were deleted before ingestion had read them, and who accepted that.';
CREATE CONSTRAINT TRIGGER record_loss AFTER INSERT ON accepted_losses DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION record_change('accepted_by', 'reason');
"""


def upgrade() -> None:
    """Create the table."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it. The journal keeps which offsets were lost."""
    op.execute("DROP TABLE accepted_losses")
