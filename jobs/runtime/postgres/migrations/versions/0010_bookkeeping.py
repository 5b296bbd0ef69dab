"""How far the journal's bookkeeping has come, and up to when a source's sequence numbers are counted."""

from alembic import op

revision = "0010"
down_revision = "0009"

SCHEMA = """
CREATE TABLE bookkeeping (
    job        text PRIMARY KEY,
    journal    text NOT NULL,
    next_lsn   bigint NOT NULL CHECK (next_lsn > 0),
    frontier   timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE bookkeeping IS
    'How far the journal (the id of its table) was taken up into what is kept beside money, with the frontier there.';
ALTER TABLE sources ADD COLUMN counted_until timestamptz;
COMMENT ON COLUMN sources.counted_until IS
    'Sequence numbers received before this minute are in `sequences`; later ones wait for the frontier.';
COMMENT ON COLUMN sources.unsequenced IS
    'At the end of a minute more than 1,000 ranges were needed: these numbers are no sequence, and none is kept.';
"""


def upgrade() -> None:
    """Add both."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove them again."""
    op.execute("ALTER TABLE sources DROP COLUMN counted_until; DROP TABLE bookkeeping")
