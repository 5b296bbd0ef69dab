"""A time zone that was announced and taken back before it began never holds: the account's row says what will be."""

from alembic import op

revision = "0019"
down_revision = "0018"

_FUNCTION = """
CREATE OR REPLACE FUNCTION catalog.keep_account_zone() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    -- Never in the past: borders that somebody has seen stay.
    begins timestamptz := CASE
        WHEN EXISTS (SELECT FROM catalog.account_zones WHERE account = NEW.account)
        THEN greatest(NEW.effective_from, now()) ELSE '-infinity' END;
BEGIN
    {taken_back}
    INSERT INTO catalog.account_zones (account, holds_from, timezone)
    SELECT NEW.account, begins, NEW.timezone
    WHERE NEW.timezone IS DISTINCT FROM (
        SELECT timezone FROM catalog.account_zones
        WHERE account = NEW.account AND holds_from <= begins ORDER BY holds_from DESC LIMIT 1
    )
    ON CONFLICT (account, holds_from) DO UPDATE SET timezone = excluded.timezone;
    RETURN NULL;
END $$;
"""
# What was announced for later than what is announced now: the row holds from its own instant on, against all of them.
TAKEN_BACK = "DELETE FROM catalog.account_zones WHERE account = NEW.account AND holds_from > begins;"
TAKEN_BACK_BEFORE = """
DELETE FROM catalog.account_zones USING catalog.accounts
WHERE accounts.account = account_zones.account AND holds_from > greatest(effective_from, now())
"""


def upgrade() -> None:
    """Make the trigger's function anew, and forget what was taken back before."""
    op.execute(_FUNCTION.format(taken_back=TAKEN_BACK))
    op.execute(TAKEN_BACK_BEFORE)


def downgrade() -> None:
    """Make it as it was."""
    op.execute(_FUNCTION.format(taken_back=""))
