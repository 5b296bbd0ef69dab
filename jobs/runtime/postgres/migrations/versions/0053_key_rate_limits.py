"""A key of the API may have rate limits of its own."""

from alembic import op

revision = "0053"
down_revision = "0052"

COLUMNS = ("requests_per_second", "events_per_minute")


def upgrade() -> None:
    """Keys that are there have the default of the API."""
    for column in COLUMNS:
        op.execute(f"ALTER TABLE api_keys ADD COLUMN {column} bigint CHECK ({column} BETWEEN 0 AND 1000000000)")


def downgrade() -> None:
    """Forget them: an API of a release before has none."""
    for column in COLUMNS:
        op.execute(f"ALTER TABLE api_keys DROP COLUMN {column}")
