"""Topics of events that an operator removed (`weir topics remove`): who, why, and what is lost with them."""

from alembic import op

revision = "0105"
down_revision = "0103"

SCHEMA = """
CREATE TABLE topic_removals (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic        text NOT NULL,
    reason       text NOT NULL CHECK (btrim(reason) <> ''),
    removed_by   text NOT NULL,
    removed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    unread       bigint CHECK (unread >= 0),
    waiting      bigint NOT NULL CHECK (waiting >= 0),
    ended_at     timestamptz,
    withdrawn_at timestamptz,
    CHECK (ended_at IS NULL OR withdrawn_at IS NULL)
);
COMMENT ON TABLE topic_removals IS
    'Topics of events that ingestion reads no more: who ended it, why, and what was left unread or waiting then.';
CREATE UNIQUE INDEX one_pending_removal ON topic_removals (topic) WHERE ended_at IS NULL AND withdrawn_at IS NULL;
CREATE CONSTRAINT TRIGGER record_removal AFTER INSERT ON topic_removals DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION record_change('removed_by', 'reason');
"""


def upgrade() -> None:
    """Create the table."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it. The journal keeps which topics were removed."""
    op.execute("DROP TABLE topic_removals")
