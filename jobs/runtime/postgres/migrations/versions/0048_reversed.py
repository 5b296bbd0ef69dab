"""A correction may be `reversed`: somebody took back what a request billed, or a part of it."""

from alembic import op

revision = "0048"
down_revision = "0047"

BEFORE = ("stream", "duplicate", "rejoined", "repriced", "contracted", "restated")
TABLES = ("corrections", "stragglers")


def _checked(table: str, causes: tuple[str, ...]) -> str:
    listed = ", ".join(f"'{cause}'" for cause in causes)
    return (
        f"ALTER TABLE {table} DROP CONSTRAINT {table}_cause_check, "
        f"ADD CONSTRAINT {table}_cause_check CHECK (cause IN ({listed})) NOT VALID"
    )


def upgrade() -> None:
    """Allow it; what stands already has one of the others."""
    for table in TABLES:
        op.execute(_checked(table, (*BEFORE, "reversed")))


def downgrade() -> None:
    """Leave it allowed: rows that have it must go on being changed, and a release before never writes it."""
