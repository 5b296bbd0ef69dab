"""Which time zone an account had from when on: a month that has begun keeps its borders when the zone changes."""

from alembic import op

revision = "0008"
down_revision = "0007"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""

SCHEMA = f"""
CREATE TABLE catalog.account_zones (
    account    text NOT NULL,
    holds_from timestamptz NOT NULL,
    timezone   text NOT NULL,
    PRIMARY KEY (account, holds_from)
);
COMMENT ON TABLE catalog.account_zones IS
    'Every time zone of an account, kept by a trigger; a billing month is that of the zone in force at its start.';
COMMENT ON COLUMN catalog.account_zones.holds_from IS 'The first zone holds from the beginning of time (-infinity).';
INSERT INTO catalog.account_zones SELECT account, '-infinity', timezone FROM catalog.accounts;

-- With the owner's rights: other systems may edit the catalog, and need none on its history.
CREATE FUNCTION catalog.keep_account_zone() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    -- Never in the past: borders that somebody has seen stay.
    begins timestamptz := CASE
        WHEN EXISTS (SELECT FROM catalog.account_zones WHERE account = NEW.account)
        THEN greatest(NEW.effective_from, now()) ELSE '-infinity' END;
BEGIN
    INSERT INTO catalog.account_zones (account, holds_from, timezone)
    SELECT NEW.account, begins, NEW.timezone
    WHERE NEW.timezone IS DISTINCT FROM (
        SELECT timezone FROM catalog.account_zones
        WHERE account = NEW.account AND holds_from <= begins ORDER BY holds_from DESC LIMIT 1
    )
    ON CONFLICT (account, holds_from) DO UPDATE SET timezone = excluded.timezone;
    RETURN NULL;
END $$;
CREATE TRIGGER keep_account_zone AFTER INSERT OR UPDATE OF timezone, effective_from ON catalog.accounts
    FOR EACH ROW EXECUTE FUNCTION catalog.keep_account_zone();

ALTER TABLE catalog.account_zones ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON catalog.account_zones FOR SELECT USING {NAMED};
"""


def upgrade() -> None:
    """Begin the history with the zones of today."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute(
        "DROP TRIGGER keep_account_zone ON catalog.accounts; DROP FUNCTION catalog.keep_account_zone();"
        "DROP TABLE catalog.account_zones"
    )
