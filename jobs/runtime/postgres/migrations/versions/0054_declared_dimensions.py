"""Which dimensions are configured is in a view: the API's reader sees them, and nothing else of a configuration."""

from alembic import op

revision = "0054"
down_revision = "0053"

SCHEMA = """
CREATE VIEW declared_dimensions AS
SELECT jsonb_array_elements_text(config -> 'dimensions') AS dimension
FROM jobs WHERE job = 'billing' AND jsonb_typeof(config -> 'dimensions') = 'array';
COMMENT ON VIEW declared_dimensions IS 'The dimensions that billing is configured with.';
"""


def upgrade() -> None:
    """Make the view."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it."""
    op.execute("DROP VIEW declared_dimensions")
