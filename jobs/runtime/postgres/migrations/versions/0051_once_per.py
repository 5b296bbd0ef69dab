"""A correction may be `once_per`: a meter counts each content once, and this outcome is another one of its content."""

from alembic import op

revision = "0051"
down_revision = "0050"

BEFORE = ("stream", "duplicate", "rejoined", "repriced", "contracted", "restated", "reversed")
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
        op.execute(_checked(table, (*BEFORE, "once_per")))


def downgrade() -> None:
    """Leave it allowed: rows that have it must go on being changed, and a release before never writes it."""
