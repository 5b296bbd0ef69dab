"""This version's migrations, as files: each is named after its revision, and follows the one named before it."""

from __future__ import annotations

from pathlib import Path

MIGRATIONS = Path(__file__).with_name("migrations")


def newest_revision(migrations: Path) -> str:
    """The revision that a database of these migrations has, without loading Alembic or any of them."""
    return max(file.name for file in (migrations / "versions").glob("[0-9]*_*.py")).partition("_")[0]
