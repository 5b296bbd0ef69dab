"""Sources (who sent, when last, which sequence numbers arrived), how drivers ended, and an index of open sessions."""

from alembic import op

revision = "0002"
down_revision = "0001"

SCHEMA = """
CREATE TABLE sources (
    source          text NOT NULL,
    source_epoch    text NOT NULL DEFAULT '',
    account         text,
    account_seen_at timestamptz,
    first_seen_at   timestamptz NOT NULL,
    last_seen_at    timestamptz NOT NULL,
    last_event_time timestamptz,
    sequences       int8multirange NOT NULL DEFAULT '{}',
    unsequenced     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (source, source_epoch),
    CHECK (first_seen_at <= last_seen_at),
    CHECK ((account IS NULL) = (account_seen_at IS NULL)),
    CHECK (NOT unsequenced OR isempty(sequences))
);
CREATE INDEX sources_by_last_seen ON sources (last_seen_at);
CREATE INDEX sources_by_account ON sources (account, last_seen_at);
COMMENT ON TABLE sources IS
    'One row per source and source epoch: when its first and last accepted events were received, and which it sent.';
COMMENT ON COLUMN sources.account IS 'Subject of the last event that named one.';
COMMENT ON COLUMN sources.account_seen_at IS 'When that event was received.';
COMMENT ON COLUMN sources.last_event_time IS 'The latest event time among its events.';
COMMENT ON COLUMN sources.sequences IS
    'The sequence numbers that arrived: what lies between two ranges is missing. Empty when the source sends none.';
COMMENT ON COLUMN sources.unsequenced IS
    'More than 1,000 ranges were needed: these numbers are no sequence, and none is kept any more.';

CREATE TABLE exits (
    job      text NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    how      text NOT NULL CHECK (how IN ('crashed', 'refused', 'fenced')),
    reason   text NOT NULL
);
CREATE INDEX exits_by_job ON exits (job, how, ended_at);
COMMENT ON TABLE exits IS
    'Why a driver ended without being asked to, as it said itself: its own metrics are gone before they can be read.';

-- Summarising, so that a session that grows is still updated in place (from Postgres 16 on).
CREATE INDEX sessions_by_end ON sessions USING brin (session_end) WITH (autosummarize = on)
    WHERE retracted_at IS NULL;
"""


def upgrade() -> None:
    """Create everything this version needs."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute("DROP INDEX sessions_by_end; DROP TABLE exits, sources")
