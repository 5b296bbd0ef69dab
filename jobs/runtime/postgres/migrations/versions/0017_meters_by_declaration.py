"""A price may be of any meter that the program declares: the list stands there, and no longer in the database, too."""

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Drop the list. `weir catalog apply` and ingestion refuse other meters, as they always did."""
    op.execute("ALTER TABLE catalog.prices DROP CONSTRAINT prices_meter_check")


def downgrade() -> None:
    """Put back the list as it was; fails while there is a price of another meter."""
    op.execute("""
        ALTER TABLE catalog.prices ADD CONSTRAINT prices_meter_check
        CHECK (meter IN ('requests', 'input_tokens', 'output_tokens', 'cached_tokens'))
    """)
