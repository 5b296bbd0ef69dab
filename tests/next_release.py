"""The release after this one, as far as this one meets it: its migration, and what it leaves in the database.

With WEIR_TESTS_AHEAD=1 all databases of a test run have its schema: each table has two more columns (`conftest.py`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from jobs.runtime.postgres.downgrade import USES, Use
from jobs.runtime.postgres.relations import VERSION_TABLE
from jobs.runtime.postgres.schema import MIGRATIONS, migrate

AHEAD = os.environ.get("WEIR_TESTS_AHEAD") == "1"
FIRST, SECOND = "9998", "9999"
_MIGRATION = '''"""Of a later release."""

from alembic import op

revision = "{revision}"
down_revision = "{before}"
is_expansion = {is_expansion}


def upgrade() -> None:
    op.execute("""{statements}""")
'''
EVERYTHING_GROWS = f"""
DO $grows$
DECLARE
    relation regclass;
BEGIN
    FOR relation IN
        SELECT oid FROM pg_class
        WHERE relnamespace IN (current_schema()::regnamespace, 'catalog'::regnamespace) AND relkind IN ('r', 'p')
          AND relname <> '{VERSION_TABLE}'
    LOOP
        EXECUTE format(
            'ALTER TABLE %s ADD COLUMN of_later text, ADD COLUMN number_of_later int NOT NULL DEFAULT 7',
            relation
        );
    END LOOP;
END $grows$
"""


@contextmanager
def migrations(*later: tuple[str, bool]) -> Iterator[Path]:
    """The migrations of a later release, within the block: these statements as well, and whether they only add."""
    with TemporaryDirectory() as folder:
        copied = Path(folder) / "migrations"
        shutil.copytree(MIGRATIONS, copied, ignore=shutil.ignore_patterns("__pycache__"))
        before = max(file.name[:4] for file in MIGRATIONS.glob("versions/*.py"))
        for revision, (statements, is_expansion) in zip((FIRST, SECOND), later, strict=False):
            text = _MIGRATION.format(revision=revision, before=before, is_expansion=is_expansion, statements=statements)
            (copied / f"versions/{revision}_later.py").write_text(text)
            before = revision
        yield copied


def migrate_ahead(url: str, uses: Sequence[Use] = USES) -> None:
    """As the release after this one does, whose migration only adds."""
    with migrations((EVERYTHING_GROWS, True)) as later:
        migrate(url, migrations=later, uses=uses)
