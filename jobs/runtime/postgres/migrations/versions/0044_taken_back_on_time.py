"""What billing's last batch took back of usage that had come on time, for the row that is put in its place.

The two are one commit of usage, but a batch may end between them.
"""

from alembic import op

revision = "0044"
down_revision = "0043"

SCHEMA = """
CREATE TABLE taken_back_on_time (
    usage_lsn bigint NOT NULL,
    meter     text NOT NULL,
    PRIMARY KEY (usage_lsn, meter)
);
COMMENT ON TABLE taken_back_on_time IS
    'Usage that was no straggler and that the last batch with corrections took back. What replaces it is billed, '
    'though it may replace a dropped straggler, too.';
"""


def upgrade() -> None:
    """Make it, empty: nothing is replaced yet."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it; a release before bills what replaces a dropped straggler to nobody."""
    op.execute("DROP TABLE taken_back_on_time")
