"""Whether anything runs past watches is in a view: the API's reader sees that, and no job."""

from alembic import op

revision = "0125"
down_revision = "0123"

SCHEMA = """
CREATE VIEW watch_status AS
SELECT EXISTS (
    SELECT FROM jobs WHERE job = 'analytics' AND config ->> 'watches' = 'true'
      AND state <> 'stopped' AND updated_at > clock_timestamp() - interval '1 day'
) AS is_running;
COMMENT ON VIEW watch_status IS
    'Whether watches run: analytics was started with `watches: true`, has not stopped, and reported within a day.';
"""


def upgrade() -> None:
    """Make the view."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it."""
    op.execute("DROP VIEW watch_status")
