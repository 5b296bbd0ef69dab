"""Lists of what grows over years are read by an index: exits, audits, thresholds, invoices and open stragglers.

Pages of days and hours have room for a new version of each row.
"""

from alembic import op

revision = "0131"
down_revision = "0126"

INDEXES = {
    "exits_by_end": "exits (job, ended_at)",
    "audits_by_start": "audits (started_at)",
    "audits_by_usage": "audits (billed_to, audit_id) WHERE is_proved",
    "threshold_changes_by_time": "threshold_changes (changed_at)",
    "invoices_by_period": "invoices (period)",
    "invoices_replaced": "invoices (replaces) WHERE replaces IS NOT NULL",
    "invoice_events_by_issue": "invoice_events (at) WHERE state = 'Issued'",
    # What keeps a month from being closed: few rows, among all stragglers of an account.
    "stragglers_open": "stragglers (account) WHERE decision = 'hold' OR settled = 0",
}

# Their rows are written again by most batches of a day or an hour. With less room a new version of a row moves to
# another page, where it needs an entry in each index, and the table becomes larger in the end.
FILLED_BEFORE, FILLED = 70, 50
ROLL_UPS = ("usage_days", "usage_hours")


def upgrade() -> None:
    """Each table is read once, and writers of it wait meanwhile: a second for a million rows."""
    for name, of in INDEXES.items():
        op.execute(f"CREATE INDEX {name} ON {of}")
    for table in ROLL_UPS:
        op.execute(f"ALTER TABLE {table} SET (fillfactor = {FILLED})")


def downgrade() -> None:
    """No row changes."""
    for name in INDEXES:
        op.execute(f"DROP INDEX {name}")
    for table in ROLL_UPS:
        op.execute(f"ALTER TABLE {table} SET (fillfactor = {FILLED_BEFORE})")
