"""The catalog's outbox: a change and the record that tells of it are one transaction."""

from alembic import op

revision = "0004"
down_revision = "0003"

SCHEMA = """
CREATE TABLE catalog_outbox (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic        text NOT NULL,
    key          text NOT NULL,
    after        text NOT NULL,
    op           text NOT NULL CHECK (op IN ('c', 'u', 'r')),
    committed_at timestamptz NOT NULL,
    published_at timestamptz
);
CREATE INDEX catalog_outbox_by_key ON catalog_outbox (topic, key, number);
CREATE INDEX catalog_outbox_pending ON catalog_outbox (number) WHERE published_at IS NULL;
COMMENT ON TABLE catalog_outbox IS
    'What `weir catalog apply` changed and tells Kafka, in this order; of what was published the last of each key.';
COMMENT ON COLUMN catalog_outbox.key IS 'JSON, as text: byte for byte the key of the record, by which Kafka compacts.';
ALTER TABLE catalog_outbox ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_everything ON catalog_outbox FOR SELECT
    USING ((SELECT current_setting('weir.accounts', true) = '*'));
"""


def upgrade() -> None:
    """Create the table; it names accounts, so only who sees all of them may read it."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute("DROP TABLE catalog_outbox")
