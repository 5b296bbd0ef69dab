"""Stamps of a broker that are not to be believed, as `weir journal restamp` says, until ingestion has followed it."""

from alembic import op

revision = "0009"
down_revision = "0008"

SCHEMA = """
CREATE TABLE restamps (
    restamp      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id     text NOT NULL,
    partition    integer NOT NULL CHECK (partition >= 0),
    first_offset bigint NOT NULL,
    last_offset  bigint NOT NULL,
    asked_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_at   timestamptz,
    CHECK (first_offset BETWEEN 0 AND last_offset)
);
CREATE INDEX restamps_pending ON restamps (topic_id) WHERE applied_at IS NULL;
COMMENT ON TABLE restamps IS
    'Offsets, both ends included, that were received when the record before them was, whatever their stamps say.';
"""


def upgrade() -> None:
    """Create the table."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute("DROP TABLE restamps")
