"""Each declaration of a view has panes of its own, and the minute from which on they hold all that was measured."""

from alembic import op

revision = "0082"
down_revision = "0080"

# Whether an earlier declaration of a view had missed outcomes is not known, so a view that had another definition, or
# that began after the first row, answers from the next minute without a pane on.
SCHEMA = """
ALTER TABLE analytics_views ADD COLUMN since timestamptz;
ALTER TABLE analytics_views DROP CONSTRAINT analytics_views_view_version_key;
CREATE UNIQUE INDEX analytics_views_declared ON analytics_views (view, version) WHERE is_declared;
UPDATE analytics_views SET since = (SELECT max(window_start) + interval '1 minute' FROM analytics_panes)
WHERE first_position > 1
   OR EXISTS (SELECT FROM analytics_views AS another
              WHERE another.view = analytics_views.view AND another.view_id <> analytics_views.view_id);
DELETE FROM analytics_panes USING analytics_views
WHERE analytics_panes.view_id = analytics_views.view_id AND window_start < since;
"""


def upgrade() -> None:
    """Add the column, and remove panes that may lack outcomes."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Keep of each definition its last declaration with its panes."""
    op.execute(
        "DELETE FROM analytics_panes USING analytics_views AS earlier, analytics_views AS later"
        " WHERE analytics_panes.view_id = earlier.view_id AND later.view = earlier.view"
        " AND later.version = earlier.version AND later.view_id > earlier.view_id;"
        "DELETE FROM analytics_views AS earlier USING analytics_views AS later"
        " WHERE later.view = earlier.view AND later.version = earlier.version AND later.view_id > earlier.view_id;"
        "DROP INDEX analytics_views_declared;"
        "ALTER TABLE analytics_views ADD UNIQUE (view, version), DROP COLUMN since"
    )
