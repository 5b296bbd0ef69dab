"""Which usage came on time and was taken back since: what is put in its place is billed, whatever else it replaces.

The two are one commit of usage, but a batch of billing may end between them.
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
    'Usage that was no straggler and was taken back (but for another price). What replaces it is billed, though it may '
    'replace a dropped straggler, too.';
"""


def upgrade() -> None:
    """Make it, empty: nothing is replaced yet."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it; a release before bills what replaces a dropped straggler to nobody."""
    op.execute("DROP TABLE taken_back_on_time")
