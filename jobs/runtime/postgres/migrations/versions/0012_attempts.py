"""What a driver was about to read, and records that it is not to judge: what ends one does not end all that follow."""

from alembic import op

revision = "0012"
down_revision = "0011"

SCHEMA = """
CREATE TABLE attempts (
    job             text PRIMARY KEY,
    epoch           bigint NOT NULL,
    positions       jsonb NOT NULL,
    records         bigint NOT NULL CHECK (records > 0),
    careful_records bigint NOT NULL CHECK (careful_records >= 0),
    failed_alone    integer NOT NULL CHECK (failed_alone >= 0),
    partition       integer,
    begun_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE attempts IS
    'What a driver was about to read, written before it read: who starts at the same positions knows that it failed.';
COMMENT ON COLUMN attempts.careful_records IS 'So many records are looked at before Spark reads any.';
COMMENT ON COLUMN attempts.partition IS 'Of the record that stood alone, when it was one.';

CREATE TABLE isolated_records (
    topic_id     text NOT NULL,
    topic        text NOT NULL,
    partition    integer NOT NULL,
    "offset"     bigint NOT NULL,
    reason       text NOT NULL CHECK (reason IN ('too_large', 'unreadable', 'skipped')),
    detail       text NOT NULL,
    size_bytes   bigint,
    isolated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    journalled_at timestamptz,
    PRIMARY KEY (topic_id, partition, "offset")
);
CREATE INDEX isolated_records_pending ON isolated_records (topic_id) WHERE journalled_at IS NULL;
COMMENT ON TABLE isolated_records IS
    'Records that are dead letters whatever they say: found too large or unreadable, or skipped by an operator.';
COMMENT ON COLUMN isolated_records.detail IS 'What went wrong with it, or why it is skipped.';
COMMENT ON COLUMN isolated_records.journalled_at IS 'Null until the journal has it.';
"""


def upgrade() -> None:
    """Create both tables."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove them again."""
    op.execute("DROP TABLE isolated_records, attempts")
