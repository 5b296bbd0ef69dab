"""Usage that changes a closed period waits until F has passed the close: then all that was on time is known."""

from alembic import op

revision = "0055"
down_revision = "0054"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""
SCHEMA = f"""
CREATE TABLE late_members (
    usage_lsn     bigint NOT NULL,
    meter         text NOT NULL,
    is_correction boolean NOT NULL,
    cause         text NOT NULL,
    corrects_lsns bigint[],
    account       text NOT NULL,
    first_day     date NOT NULL,
    model         text,
    currency      text,
    price_version bigint,
    aggregation   text NOT NULL,
    period        text NOT NULL,
    window_start  timestamptz NOT NULL,
    closes_at     timestamptz NOT NULL,
    member        text NOT NULL,
    value         numeric CHECK (value <> 'NaN'),
    occurred_at   timestamptz,
    member_rows   bigint NOT NULL,
    PRIMARY KEY (usage_lsn, meter)
);
CREATE INDEX late_members_by_close ON late_members (closes_at);
COMMENT ON TABLE late_members IS
    'Usage that changes closed periods, until F has passed the close and its corrections are written.';
ALTER TABLE late_members ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON late_members FOR SELECT USING {NAMED};
"""


def upgrade() -> None:
    """Make the table. What had been corrected before stays as it is."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it: a release before corrects a period as its usage comes."""
    op.execute("DROP TABLE late_members")
