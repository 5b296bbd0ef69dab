"""Keys of the API. Of a key only its SHA-256 is stored: a copy of the database opens nothing."""

from alembic import op

revision = "0050"
down_revision = "0049"

SCHEMA = """
CREATE TABLE api_keys (
    key_id        text PRIMARY KEY,
    secret_sha256 bytea NOT NULL CHECK (octet_length(secret_sha256) = 32),
    scopes        text[] NOT NULL CHECK (cardinality(scopes) > 0),
    accounts      text[] NOT NULL DEFAULT '{}',
    sources       text[] NOT NULL DEFAULT '{}',
    note          text,
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at    timestamptz,
    revoked_by    text,
    revoked_at    timestamptz
);
COMMENT ON TABLE api_keys IS
    'Keys of the API (`weir keys`). accounts: whose events a key may send, {} for all; sources: patterns, likewise.';
"""


def upgrade() -> None:
    """Make the table, empty: nobody has a key."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Forget all keys; clients get new ones after the next upgrade."""
    op.execute("DROP TABLE api_keys")
