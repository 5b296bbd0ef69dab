"""The windows that views are shown in by default are in a view: the API's reader sees them, and no configuration."""

from alembic import op

revision = "0095"
down_revision = "0094"

SCHEMA = """
CREATE VIEW declared_windows AS
SELECT config -> 'windows' AS windows FROM jobs
WHERE job = 'analytics' AND jsonb_typeof(config -> 'windows') = 'object';
COMMENT ON VIEW declared_windows IS 'The windows that views are shown in by default, as analytics is configured.';
"""


def upgrade() -> None:
    """Make the view."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it."""
    op.execute("DROP VIEW declared_windows")
