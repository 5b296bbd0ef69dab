"""What a window and a straggler keep so that nothing depends on when a deadline was seen: a position, a sign.

An older billing that still runs leaves them null: its version is the position then, and its quantity is not negative.
"""

from alembic import op

revision = "0028"
down_revision = "0027"

SCHEMA = """
ALTER TABLE usage_windows ADD COLUMN next_position bigint;
COMMENT ON COLUMN usage_windows.next_position IS
    'Position in usage behind the batch that changed it last. Null: not changed since releases that did not say it.';
COMMENT ON COLUMN usage_windows.version IS
    'Grows with every change: as the position in usage does, and by 1 with each straggler that the window got. 0: of a '
    'release before versions.';

ALTER TABLE stragglers ADD COLUMN sign integer CHECK (abs(sign) = 1);
COMMENT ON COLUMN stragglers.sign IS
    'Of its row of usage: -1 takes back. Null: of a release that did not say it; that of the quantity.';
"""


def upgrade() -> None:
    """Add both columns, empty."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove them again."""
    op.execute("ALTER TABLE usage_windows DROP COLUMN next_position; ALTER TABLE stragglers DROP COLUMN sign")
