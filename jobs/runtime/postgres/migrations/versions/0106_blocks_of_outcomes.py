"""Outcomes that patterns look at are blocks of a minute, for all patterns; versions of matches may be large.

The outcomes that are stored are of the release before: so patterns begin again, as those that were changed do, and
their matches stay.
"""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0106"
down_revision = "0105"

BEFORE: Any = import_module("jobs.runtime.postgres.migrations.versions.0103_patterns")
BEGIN_AGAIN = """
UPDATE analytics_patterns SET is_declared = false, final_until = greatest(final_until, (
    SELECT {last} + interval '1 minute' FROM pattern_outcomes
))
WHERE is_declared;
DROP TABLE pattern_outcomes;
"""
SCHEMA = """
CREATE TABLE pattern_outcomes (
    block_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    minute   timestamptz NOT NULL,
    rows     integer NOT NULL CHECK (rows > 0),
    outcomes bytea NOT NULL
);
-- Compressing takes longer than writing what is removed after days.
ALTER TABLE pattern_outcomes ALTER COLUMN outcomes SET STORAGE EXTERNAL;
CREATE INDEX pattern_outcomes_by_minute ON pattern_outcomes (minute);
COMMENT ON TABLE pattern_outcomes IS
    'The outcomes that patterns look at, in blocks of a minute, as long as late ones may revise matches.';
-- Each block is of all accounts: no reader sees any.
ALTER TABLE pattern_outcomes ENABLE ROW LEVEL SECURITY;
ALTER TABLE pattern_matches ALTER COLUMN version TYPE bigint;
"""
SCHEMA_BEFORE = BEFORE.SCHEMA[
    BEFORE.SCHEMA.index("CREATE TABLE pattern_outcomes") : BEFORE.SCHEMA.index("CREATE TABLE pattern_matches")
]
# Versions counted from 1 again, as the release before has them.
VERSIONS_BEFORE = """
UPDATE pattern_matches AS m SET version = -numbered.version FROM (
    SELECT pattern_id, match_id, version AS of,
           row_number() OVER (PARTITION BY pattern_id, match_id ORDER BY version) AS version
    FROM pattern_matches
) AS numbered
WHERE (m.pattern_id, m.match_id, m.version) = (numbered.pattern_id, numbered.match_id, numbered.of);
"""


def upgrade() -> None:
    """Make the new table in place of the old one, empty."""
    op.execute(BEGIN_AGAIN.format(last="date_trunc('minute', max(event_time))") + SCHEMA)


def downgrade() -> None:
    """Make the table before again, empty, and count versions from 1."""
    op.execute(BEGIN_AGAIN.format(last="max(minute)") + SCHEMA_BEFORE)
    op.execute("ALTER TABLE pattern_matches DROP CONSTRAINT pattern_matches_version_check")
    op.execute(VERSIONS_BEFORE)
    op.execute(
        "UPDATE pattern_matches SET version = -version; ALTER TABLE pattern_matches ALTER COLUMN version TYPE integer,"
        " ADD CONSTRAINT pattern_matches_version_check CHECK (version > 0)"
    )
