"""An account and a plan keep their names, so each account has the calendar that joins bills it by.

A new name with SQL was a deletion and another account to whoever captured it, and nothing to the history of time zones:
the account's bills had months of UTC. Accounts that were renamed so get the zone that joins names their days by.
"""

import psycopg
from alembic import op

from jobs.runtime.postgres.move import lock_alone

revision = "0035"
down_revision = "0034"

KEYS = """
CREATE FUNCTION catalog.refuse_to_rename() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF TG_TABLE_NAME = 'accounts' THEN
        RAISE EXCEPTION 'account % keeps its name, under which its usage is billed: insert % beside it, and delete % '
            'when nothing sends usage for it any more (weir catalog delete account, --at as of an instant)',
            quote_literal(OLD.account), quote_literal(NEW.account), quote_literal(OLD.account)
            USING ERRCODE = 'check_violation';
    END IF;
    RAISE EXCEPTION 'plan % keeps its name, under which its usage is priced: insert % beside it with its prices, move '
        'the accounts, and delete % (weir catalog delete plan); catalog.plans.name may be changed',
        quote_literal(OLD.plan), quote_literal(NEW.plan), quote_literal(OLD.plan) USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER refuse_to_rename BEFORE UPDATE ON catalog.accounts FOR EACH ROW
    WHEN (NEW.account <> OLD.account) EXECUTE FUNCTION catalog.refuse_to_rename();
CREATE TRIGGER refuse_to_rename BEFORE UPDATE ON catalog.plans FOR EACH ROW
    WHEN (NEW.plan <> OLD.plan) EXECUTE FUNCTION catalog.refuse_to_rename();
COMMENT ON FUNCTION catalog.keep_account_zone() IS
    'The copy of metering.months.zone_changes: a change of either is a change of both.';
"""
# Nobody may change an account meanwhile, or its zone would begin before this and be overruled. And all that this and
# the next step change: who stores plans, prices and accounts in one transaction waits for them in another order.
ALONE = ("plans", "prices", "accounts")
LOCK_TIMEOUT = "500ms"
# What the newest change of an account says is what its history ends with, but for accounts that were renamed.
RENAMED = """
INSERT INTO catalog.account_zones (account, holds_from, timezone)
SELECT account,
       CASE WHEN newest.timezone IS NULL THEN '-infinity'
            ELSE greatest(effective_from, changed_at, newest.holds_from, '1971-01-01 UTC') END,
       accounts.timezone
FROM catalog.accounts LEFT JOIN LATERAL (
    SELECT holds_from, timezone FROM catalog.account_zones
    WHERE account_zones.account = accounts.account ORDER BY holds_from DESC LIMIT 1
) AS newest ON true
WHERE newest.timezone IS DISTINCT FROM accounts.timezone
ON CONFLICT (account, holds_from) DO UPDATE SET timezone = excluded.timezone
"""


def upgrade() -> None:
    """Refuse new names, and give renamed accounts the zones that they have."""
    connection = op.get_bind().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    lock_alone(connection, "catalog", ALONE, LOCK_TIMEOUT)
    op.execute(KEYS)
    op.execute(RENAMED)


def downgrade() -> None:
    """Take new names again; zones stay, as the version before reads the same table."""
    op.execute("DROP TRIGGER refuse_to_rename ON catalog.accounts; DROP TRIGGER refuse_to_rename ON catalog.plans")
    op.execute("DROP FUNCTION catalog.refuse_to_rename(); COMMENT ON FUNCTION catalog.keep_account_zone() IS NULL")
