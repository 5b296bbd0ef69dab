"""Limits of quantities are in the catalog: how much of a meter an account, or each account of a plan, may use a period.

The API answers by them whether an account still has access; nothing is billed by them, so they are not captured.
"""

from alembic import op

revision = "0061"
down_revision = "0059"

# The rule of migration 0003: who names no account sees none. A plan's limits are shown to who has it, as its prices.
SCHEMA = """
CREATE TABLE catalog.limits (
    account        text NOT NULL DEFAULT '',
    plan           text NOT NULL DEFAULT '',
    meter          text NOT NULL CHECK (meter <> ''),
    period         text NOT NULL CHECK (period IN ('P1D', 'P1M')),
    effective_from timestamptz NOT NULL CHECK (isfinite(effective_from)),
    quantity       numeric CHECK (quantity >= 0 AND quantity < 'Infinity'),
    changed_by     text,
    changed_at     timestamptz,
    PRIMARY KEY (account, plan, meter, period, effective_from),
    CONSTRAINT limit_of_an_account_or_a_plan CHECK ((account = '') <> (plan = ''))
);
CREATE INDEX limits_by_plan ON catalog.limits (plan) WHERE plan <> '';
COMMENT ON TABLE catalog.limits IS
    'How much of a meter an account, or each account of a plan, may use in a day or month of its own calendar.';
CREATE TRIGGER keep_author BEFORE INSERT OR UPDATE ON catalog.limits
    FOR EACH ROW EXECUTE FUNCTION catalog.keep_author();
ALTER TABLE catalog.limits ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON catalog.limits FOR SELECT USING (
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
    OR plan <> '' AND plan IN (SELECT plan FROM catalog.account_history WHERE holds_until > now())
);
"""


def upgrade() -> None:
    """Make the table, empty: nobody has a limit."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it: a release before answers no question about access."""
    op.execute("DROP TABLE catalog.limits")
