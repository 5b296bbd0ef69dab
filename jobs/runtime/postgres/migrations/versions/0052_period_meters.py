"""Meters of a period, which bill a set of members: `unique`, `max` and `latest`, and the members themselves."""

from alembic import op

revision = "0052"
down_revision = "0051"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""
SCHEMA = f"""
ALTER TABLE meters
    ADD COLUMN aggregation text CHECK (aggregation IN ('unique', 'max', 'latest')),
    ADD COLUMN period text CHECK (period IN ('day', 'month')),
    ADD CHECK ((aggregation IS NULL) = (period IS NULL));
ALTER TABLE corrections ADD COLUMN period text CHECK (period IN ('day', 'month'));

CREATE TABLE usage_members (
    account       text NOT NULL,
    first_day     date NOT NULL,
    model         text,
    meter         text NOT NULL,
    currency      text,
    price_version bigint,
    member        text NOT NULL,
    value         numeric CHECK (value <> 'NaN'),
    occurred_at   timestamptz,
    member_rows   bigint NOT NULL,
    CONSTRAINT usage_members_key
        UNIQUE NULLS NOT DISTINCT (account, first_day, meter, model, currency, price_version, member)
);
CREATE INDEX usage_members_in_order ON usage_members
    (account, first_day, meter, model, currency, price_version, occurred_at DESC NULLS LAST, value DESC)
    WHERE member_rows > 0 AND value IS NOT NULL;
COMMENT ON TABLE usage_members IS
    'What meters with an aggregation count in each period, written with usage_days in one transaction.';
ALTER TABLE usage_members ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON usage_members FOR SELECT USING {NAMED};
"""


def upgrade() -> None:
    """Make the table; nothing that stands is of such a meter."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute(
        "DROP TABLE usage_members; ALTER TABLE corrections DROP COLUMN period;"
        " ALTER TABLE meters DROP COLUMN aggregation, DROP COLUMN period"
    )
