"""Portal tokens that were invalidated, by the account or one by one; written by the API as its reader's role."""

from alembic import op

revision = "0115"
down_revision = "0112"

# Without `weir.accounts` nothing is seen: an empty list of accounts is of no row.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
    OR token_id <> '' AND of_accounts = current_setting('weir.accounts', true)
)"""
SCHEMA = f"""
CREATE TABLE portal_invalidations (
    account         text NOT NULL DEFAULT '',
    token_id        text NOT NULL DEFAULT '',
    of_accounts     text NOT NULL DEFAULT '',
    -- In the key instead of the accounts, which can be too many for an index.
    accounts_digest text NOT NULL DEFAULT '',
    generation      bigint NOT NULL DEFAULT 1 CHECK (generation > 0),
    key_id          text NOT NULL,
    invalidated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (account, token_id, accounts_digest),
    CHECK ((account = '') <> (token_id = '')),
    CHECK ((token_id = '') = (of_accounts = ''))
);
COMMENT ON TABLE portal_invalidations IS
    'Portal tokens that were ended before their time: all of an account below a generation, or one by its id.';
CREATE INDEX portal_invalidations_at ON portal_invalidations (invalidated_at);
ALTER TABLE portal_invalidations ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_named_accounts ON portal_invalidations USING {NAMED} WITH CHECK {NAMED};
"""


def upgrade() -> None:
    """Create the table, empty: no token is invalidated."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it: invalidated tokens hold again, for a day at most."""
    op.execute("DROP TABLE portal_invalidations")
