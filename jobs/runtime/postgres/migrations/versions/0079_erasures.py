"""Who was forgotten: an HMAC of the person, who asked for it, when and why. The name is nowhere."""

from alembic import op

revision = "0079"
down_revision = "0078"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""
SCHEMA = f"""
CREATE TABLE erasures (
    erasure       bigint PRIMARY KEY CHECK (erasure > 0),
    account       text NOT NULL,
    person        bytea NOT NULL CHECK (octet_length(person) = 32),
    key_id        text NOT NULL,
    reason        text NOT NULL CHECK (reason <> ''),
    asked_by      text NOT NULL,
    asked_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    journal_until bigint,
    usage_until   bigint,
    erased_at     timestamptz,
    UNIQUE (account, person)
);
COMMENT ON TABLE erasures IS 'People who were forgotten, by an HMAC. In the place of the name stands erased-N.';
ALTER TABLE erasures ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON erasures FOR SELECT USING {NAMED};
"""


def upgrade() -> None:
    """Make the table, empty: nobody was forgotten."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it: a release before stores later events of these people as they are."""
    op.execute("DROP TABLE erasures")
