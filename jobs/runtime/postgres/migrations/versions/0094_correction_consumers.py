"""Who acknowledged which corrections, written by the API as its reader's role."""

from alembic import op

revision = "0094"
down_revision = "0093"

SCHEMA = """
CREATE TABLE correction_consumers (
    consumer        text NOT NULL CHECK (consumer <> ''),
    of_accounts     text NOT NULL,
    number          bigint NOT NULL CHECK (number >= 0),
    acknowledged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    key_id          text NOT NULL,
    PRIMARY KEY (consumer, of_accounts)
);
COMMENT ON TABLE correction_consumers IS
    'Up to which number each consumer has applied the corrections of its accounts.';
COMMENT ON COLUMN correction_consumers.of_accounts IS
    'The accounts of its key, as weir.accounts has them: * or a list.';
ALTER TABLE correction_consumers ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_the_same_accounts ON correction_consumers
    USING (of_accounts = current_setting('weir.accounts', true))
    WITH CHECK (of_accounts = current_setting('weir.accounts', true));
"""


def upgrade() -> None:
    """Create the table, empty: nobody is waited for."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it: consumers acknowledge again after the next upgrade."""
    op.execute("DROP TABLE correction_consumers")
