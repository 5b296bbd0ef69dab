"""Patterns: the outcomes that they look at, and each time that a match became final, changed or was retracted.

Webhooks are called about it by a trigger as those of migration 0092.
"""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0103"
down_revision = "0102"

# The rule of migration 0003: who names no account sees none. What is of no single account is for readers of all.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""
SCHEMA = f"""
CREATE TABLE analytics_patterns (
    pattern_id     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pattern        text NOT NULL,
    version        text NOT NULL,
    definition     jsonb NOT NULL,
    first_position bigint NOT NULL,
    since          timestamptz,
    final_until    timestamptz NOT NULL DEFAULT 'epoch',
    is_declared    boolean NOT NULL DEFAULT true,
    declared_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX analytics_patterns_declared ON analytics_patterns (pattern) WHERE is_declared;
COMMENT ON TABLE analytics_patterns IS 'Patterns that analytics looks for, or has looked for, by their definition.';

CREATE TABLE pattern_outcomes (
    pattern_id  integer NOT NULL REFERENCES analytics_patterns,
    event_time  timestamptz NOT NULL,
    lsn         bigint NOT NULL,
    account     text,
    keys        jsonb NOT NULL,
    keys_digest bytea GENERATED ALWAYS AS (sha256(jsonb_send(keys))) STORED,
    outcome     jsonb NOT NULL,
    may_start   boolean NOT NULL,
    PRIMARY KEY (pattern_id, keys_digest, event_time, lsn)
);
CREATE INDEX pattern_outcomes_to_start ON pattern_outcomes (pattern_id, event_time) WHERE may_start;
CREATE INDEX pattern_outcomes_by_time ON pattern_outcomes USING brin (event_time);
COMMENT ON TABLE pattern_outcomes IS 'The outcomes that patterns look at, as long as late ones may revise matches.';
ALTER TABLE pattern_outcomes ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON pattern_outcomes FOR SELECT USING {NAMED};

CREATE TABLE pattern_matches (
    pattern_id   integer NOT NULL REFERENCES analytics_patterns,
    match_id     text NOT NULL,
    version      integer NOT NULL CHECK (version > 0),
    is_retracted boolean NOT NULL,
    account      text,
    keys         jsonb NOT NULL,
    keys_digest  bytea GENERATED ALWAYS AS (sha256(jsonb_send(keys))) STORED,
    first_lsn    bigint NOT NULL,
    last_lsn     bigint NOT NULL,
    started_at   timestamptz NOT NULL,
    ended_at     timestamptz NOT NULL CHECK (ended_at >= started_at),
    outcomes     integer NOT NULL CHECK (outcomes > 0),
    measures     jsonb NOT NULL,
    frontier     timestamptz,
    changed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pattern_id, match_id, version)
);
CREATE INDEX pattern_matches_by_key ON pattern_matches (pattern_id, keys_digest, started_at);
CREATE INDEX pattern_matches_by_start ON pattern_matches (started_at);
COMMENT ON TABLE pattern_matches IS
    'Each time that a match of a pattern became final, changed or was retracted: of a match the last version holds.';
ALTER TABLE pattern_matches ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON pattern_matches FOR SELECT USING {NAMED};
"""

WEBHOOKS: Any = import_module("jobs.runtime.postgres.migrations.versions.0092_webhook_outbox")
TYPES = "weir.pattern.matched,weir.pattern.retracted"
# A pattern that is declared again has another number, so that is no part of a match's name here.
# What is older than a week calls nobody: events that were delivered are known for 30 days.
CALLED = """
    SELECT 'weir.pattern.' || CASE WHEN is_retracted THEN 'retracted' ELSE 'matched' END AS type,
           coalesce(account, '') AS account, jsonb_build_array(match_id, added.version) AS about,
           jsonb_build_object(
               'match', match_id, 'version', added.version, 'pattern', pattern, 'keys', keys,
               'started_at', started_at, 'ended_at', ended_at, 'outcomes', outcomes, 'measures', measures,
               'frontier', frontier
           ) AS data,
           row_number() OVER (ORDER BY started_at, is_retracted DESC, match_id) AS place
    FROM added JOIN {schema}.analytics_patterns USING (pattern_id)
    WHERE frontier IS NULL OR started_at > frontier - interval '7 days'
"""


def upgrade() -> None:
    """Make all three, empty: analytics fills them where patterns are declared."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute(SCHEMA)
    op.execute(WEBHOOKS.TRIGGER.format(table="pattern_matches", types=TYPES, rows=CALLED.format(schema=schema)))


def downgrade() -> None:
    """Remove them: a release before looks for no patterns."""
    op.execute("DROP TABLE pattern_matches, pattern_outcomes, analytics_patterns")
