"""Events of types that Weir does not know, counted by type."""

from alembic import op

revision = "0011"
down_revision = "0010"

SCHEMA = """
CREATE TABLE unknown_types (
    type          text PRIMARY KEY,
    events        bigint NOT NULL CHECK (events > 0),
    first_seen_at timestamptz NOT NULL,
    last_seen_at  timestamptz NOT NULL,
    last_source   text,
    CHECK (first_seen_at <= last_seen_at)
);
COMMENT ON TABLE unknown_types IS
    'Accepted events of types that Weir does not know and bills to nobody; beyond 1,000 types under an empty one.';
ALTER TABLE unknown_types ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_everything ON unknown_types FOR SELECT
    USING ((SELECT current_setting('weir.accounts', true) = '*'));
"""


def upgrade() -> None:
    """Create the table; it names sources of any account, so only who sees all accounts may read it."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute("DROP TABLE unknown_types")
