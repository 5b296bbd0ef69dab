"""Row-level security: whoever is not the owner sees only the accounts its transaction names; and indexes to read by.

`weir.accounts` is `*` (all accounts) or a JSON array of names. Unset or empty shows no row. The applications own the
tables, so the policies do not hold them.
"""

from alembic import op

revision = "0003"
down_revision = "0002"

OF_AN_ACCOUNT = ("usage_windows", "stragglers", "sessions", "sources", "catalog.accounts")

# Scalar subqueries: evaluated once per statement, not once per row.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""

# Whose plan it is may be read through the accounts, which have a policy of their own.
PLAN_OF_NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*') OR plan IN (SELECT plan FROM catalog.accounts)
)"""

INDEXES = """
CREATE INDEX stragglers_by_arrival ON stragglers (received_at);
CREATE INDEX sessions_retracted ON sessions (account, user_id) WHERE retracted_at IS NOT NULL;
CREATE INDEX batches_by_commit ON batches (job, committed_at);
"""


def upgrade() -> None:
    """Guard every table that names an account, and plans with their prices."""
    for table in OF_AN_ACCOUNT:
        guard(table, NAMED)
    for table in ("catalog.plans", "catalog.prices"):
        guard(table, PLAN_OF_NAMED)
    op.execute(INDEXES)


def guard(table: str, rule: str) -> None:
    """Let others than the owner read the rows of `table` that keep `rule`."""
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY reads_named_accounts ON {table} FOR SELECT USING {rule}")


def downgrade() -> None:
    """Remove it again."""
    for table in (*OF_AN_ACCOUNT, "catalog.plans", "catalog.prices"):
        op.execute(f"DROP POLICY reads_named_accounts ON {table}")
        op.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    op.execute("DROP INDEX stragglers_by_arrival, sessions_retracted, batches_by_commit")
