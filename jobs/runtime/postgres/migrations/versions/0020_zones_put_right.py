"""A time zone that was taken back before 0019 but had begun by then ends now: the account's row says which one holds.

What it named since it began stays: a change never holds from the past.
"""

from alembic import op

revision = "0020"
down_revision = "0019"

# Who changes an account meanwhile would have its zone from before this instant, and be overruled.
ALONE = "LOCK TABLE catalog.accounts IN SHARE MODE"
# A row that is still to come has its zone kept for then; until then the one before it holds. The instant is that of the
# statement, after the lock: the transaction may have begun long before.
PUT_RIGHT = """
INSERT INTO catalog.account_zones (account, holds_from, timezone)
SELECT account, statement_timestamp(), accounts.timezone
FROM catalog.accounts
CROSS JOIN LATERAL (
    SELECT timezone FROM catalog.account_zones
    WHERE account_zones.account = accounts.account AND holds_from <= statement_timestamp()
    ORDER BY holds_from DESC LIMIT 1
) AS in_force
WHERE in_force.timezone <> accounts.timezone
  AND (effective_from IS NULL OR effective_from <= statement_timestamp())
ON CONFLICT (account, holds_from) DO UPDATE SET timezone = excluded.timezone
"""


def upgrade() -> None:
    """Have each account's own zone hold from now on."""
    op.execute(ALONE)
    op.execute(PUT_RIGHT)


def downgrade() -> None:
    """Leave it so: the version before reads the same table, and borders that were shown stay."""
