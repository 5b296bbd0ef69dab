"""What changes a closed period waits for the grace that its meter has when F passes it, and not for that of its row."""

from alembic import op

revision = "0056"
down_revision = "0055"

# A row closed when its period ended if that had been shown closed under an earlier grace; otherwise by its own grace.
ENDS = """
UPDATE late_members SET ends_at = CASE
    WHEN closes_at <= coalesce((meter_closed_before ->> meter)::timestamptz, closed_before) THEN closes_at
    ELSE closes_at - make_interval(secs => coalesce(
        (rules #>> ARRAY['meter_grace_seconds', meter])::numeric, (rules ->> 'grace_seconds')::numeric
    )::double precision)
END
FROM (
    SELECT first_position, closed_before, meter_closed_before, rules.rules,
           lead(first_position) OVER (ORDER BY first_position) AS end_position
    FROM rules WHERE job = 'billing'
) AS held
WHERE usage_lsn >= first_position AND (end_position IS NULL OR usage_lsn < end_position)
"""


def upgrade() -> None:
    """Store the end of the period instead of its close."""
    op.execute("ALTER TABLE late_members ADD COLUMN ends_at timestamptz")
    op.execute(ENDS)
    op.execute("UPDATE late_members SET ends_at = closes_at WHERE ends_at IS NULL")
    op.execute("ALTER TABLE late_members ALTER COLUMN ends_at SET NOT NULL, DROP COLUMN closes_at")


def downgrade() -> None:
    """Store the close again. `downgrade.py` refuses while anything waits."""
    op.execute("ALTER TABLE late_members DROP COLUMN ends_at, ADD COLUMN closes_at timestamptz NOT NULL")
    op.execute("CREATE INDEX late_members_by_close ON late_members (closes_at)")
