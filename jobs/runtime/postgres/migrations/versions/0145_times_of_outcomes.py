"""A measure of a view may be the time between outcomes: panes then have when outcomes occurred, and releases before
cannot read the view's definition (`downgrade.USES`). Nothing else changes.
"""

from alembic import op

revision = "0145"
down_revision = "0144"
is_expansion = True

BEFORE = "What each view measures of the outcomes of a minute, by key: numbers, and sketches that can be merged."
SINCE = "What each view measures of the outcomes of a minute, by key: numbers, sketches and times that can be merged."


def upgrade() -> None:
    """Say so."""
    op.execute(f"COMMENT ON TABLE analytics_panes IS '{SINCE}'")


def downgrade() -> None:
    """As it was."""
    op.execute(f"COMMENT ON TABLE analytics_panes IS '{BEFORE}'")
