"""A position says of which table it is: hashes of the table's id and of the row before the position."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Nullable: a position of the version before has none, and adopts its table at the next start."""
    op.execute("""
ALTER TABLE positions ADD COLUMN input_table bigint, ADD COLUMN row_before bigint;
COMMENT ON COLUMN positions.input_table IS 'Hash of the id of the table that was folded; null: not known yet.';
COMMENT ON COLUMN positions.row_before IS 'Hash of the row before next_position, by which that table is known again.';
""")


def downgrade() -> None:
    """Positions are numbers again."""
    op.execute("ALTER TABLE positions DROP COLUMN input_table, DROP COLUMN row_before")
