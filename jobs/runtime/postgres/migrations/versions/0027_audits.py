"""Audits are rows: what each examined, found and put right; of one that was killed `finished_at` stays null.

They hold sums over all accounts: only who may see all reads them.
"""

from alembic import op

revision = "0027"
down_revision = "0026"

SCHEMA = """
CREATE TABLE audits (
    audit_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at    timestamptz NOT NULL DEFAULT now(),
    finished_at   timestamptz,
    received_from timestamptz,
    occurred_to   timestamptz,
    version       text NOT NULL,
    checks        jsonb NOT NULL DEFAULT '[]',
    unexpected    jsonb NOT NULL DEFAULT '{}',
    corrected     jsonb NOT NULL DEFAULT '{}',
    changed       jsonb NOT NULL DEFAULT '{}',
    failure       text,
    is_proved     boolean NOT NULL DEFAULT false,
    CHECK (NOT is_proved OR (finished_at IS NOT NULL AND failure IS NULL AND unexpected = '{}'))
);
CREATE INDEX audits_proved ON audits (started_at) WHERE is_proved;
CREATE INDEX audits_that_found ON audits (audit_id) WHERE unexpected <> '{}';
CREATE INDEX audits_that_corrected ON audits (audit_id) WHERE corrected <> '{}';
COMMENT ON TABLE audits IS
    'Every audit but dry runs, written as it goes. Both bounds null: all that the tables held.';
COMMENT ON COLUMN audits.finished_at IS 'Null while it runs, and for ever if it was killed.';
COMMENT ON COLUMN audits.checks IS 'The rows of weir audit --format json, as far as it came.';
COMMENT ON COLUMN audits.unexpected IS 'Differences without a known cause, by check; checks without any are left out.';
COMMENT ON COLUMN audits.corrected IS 'Rows of usage that it appended, by cause.';
COMMENT ON COLUMN audits.changed IS 'What they change in money: cause, then currency, then the signed amount as text.';
COMMENT ON COLUMN audits.failure IS 'What ended it before it had examined all.';

ALTER TABLE audits ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_all_accounts ON audits FOR SELECT
    USING ((SELECT current_setting('weir.accounts', true) = '*'));
"""


def upgrade() -> None:
    """Make the table. An older application knows nothing of it, and its writes stay right."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute("DROP TABLE audits")
