"""Long panes are not compressed: each batch did that again with each that it changed.

A pane with a full sketch of texts has more than 4 KB, which stand beside its row then. Compressed it had a page to
itself, too. Writing 2,500 panes, of which 60 are so long, takes the database six tenths of the time.
"""

from alembic import op

revision = "0147"
down_revision = "0146"
is_expansion = True


def upgrade() -> None:
    """Of rows that are written from now on."""
    op.execute("ALTER TABLE analytics_panes ALTER measures SET STORAGE EXTERNAL")


def downgrade() -> None:
    """As it was; rows stay as they are written, and are read by all releases."""
    op.execute("ALTER TABLE analytics_panes ALTER measures SET STORAGE EXTENDED")
