"""Meters of a period that bill the least number: `min`."""

from alembic import op

revision = "0119"
down_revision = "0118"

ALLOW = """
ALTER TABLE meters DROP CONSTRAINT meters_aggregation_check,
    ADD CONSTRAINT meters_aggregation_check CHECK (aggregation IN ({}))
"""


def upgrade() -> None:
    """Allow the further one."""
    op.execute(ALLOW.format("'unique', 'min', 'max', 'latest'"))


def downgrade() -> None:
    """Forbid it again; the downgrade is refused where such a meter was ever declared."""
    op.execute(ALLOW.format("'unique', 'max', 'latest'"))
