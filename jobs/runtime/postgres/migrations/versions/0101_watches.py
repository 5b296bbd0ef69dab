"""Watches: stored queries, the first hits of each hour, how many there were, and what was called about."""

from alembic import op

revision = "0101"
down_revision = "0099"

# The rule of migration 0003: who names no account sees none. A watch of no single account is for readers of all.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""
GUARDED = ("watches", "watch_hits", "watch_hours", "watch_calls")
SCHEMA = """
CREATE TABLE watches (
    watch_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name           text NOT NULL CHECK (name <> ''),
    condition      text NOT NULL CHECK (condition <> ''),
    columns        jsonb NOT NULL,
    account        text,
    added_by       text NOT NULL,
    added_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    removed_by     text,
    removed_at     timestamptz,
    first_position bigint,
    calls_from     bigint,
    CONSTRAINT removed_by_somebody CHECK ((removed_by IS NULL) = (removed_at IS NULL))
);
CREATE UNIQUE INDEX watches_by_name ON watches (name) WHERE removed_at IS NULL;
COMMENT ON TABLE watches IS
    'Stored queries, past which every outcome runs. A condition never changes: another one is another watch.';

CREATE TABLE watch_hits (
    watch_id       bigint NOT NULL REFERENCES watches,
    hour           timestamptz NOT NULL,
    request_lsn    bigint NOT NULL,
    completion_lsn bigint NOT NULL,
    net            bigint NOT NULL,
    event_time     timestamptz NOT NULL,
    account        text,
    request_id     text,
    PRIMARY KEY (watch_id, hour, request_lsn, completion_lsn)
);
CREATE INDEX watch_hits_by_hour ON watch_hits (hour);
COMMENT ON TABLE watch_hits IS
    'The first outcomes of each hour that a watch takes, by their rows of the journal; those with net > 0 are hits.';

CREATE TABLE watch_hours (
    watch_id bigint NOT NULL REFERENCES watches,
    hour     timestamptz NOT NULL,
    account  text,
    hits     bigint NOT NULL,
    PRIMARY KEY (watch_id, hour)
);
CREATE INDEX watch_hours_by_hour ON watch_hours (hour);
COMMENT ON TABLE watch_hours IS 'How many hits a watch has in each hour of event time.';

CREATE TABLE watch_calls (
    watch_id bigint NOT NULL REFERENCES watches,
    hour     timestamptz NOT NULL,
    step     bigint NOT NULL CHECK (step > 0),
    account  text,
    name     text NOT NULL,
    hits     bigint NOT NULL,
    first    jsonb NOT NULL,
    made_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (watch_id, hour, step)
);
CREATE INDEX watch_calls_by_hour ON watch_calls (hour);
COMMENT ON TABLE watch_calls IS 'When the hits of a watch in an hour had reached 1, 10, 100 and so on.';

CREATE TABLE watch_progress (
    is_the_one  boolean PRIMARY KEY DEFAULT true CHECK (is_the_one),
    last_minute timestamptz NOT NULL
);
COMMENT ON TABLE watch_progress IS 'The last minute of which outcomes ran past watches: one row.';
"""

# As migration 0075 does: who added a watch, and who removed it. What analytics notes in its row is no change of it.
RECORDED = """
CREATE CONSTRAINT TRIGGER record_new AFTER INSERT ON watches DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION record_change('added_by', '', 'columns');
CREATE CONSTRAINT TRIGGER record_removal AFTER UPDATE ON watches DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (OLD.removed_at IS DISTINCT FROM NEW.removed_at)
    EXECUTE FUNCTION record_change('removed_by', '', 'columns');
CREATE CONSTRAINT TRIGGER record_deletion AFTER DELETE ON watches DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION record_change('', '', 'columns');
"""


def upgrade() -> None:
    """Make the tables, empty: nobody watches."""
    op.execute(SCHEMA)
    for table in GUARDED:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY reads_named_accounts ON {table} FOR SELECT USING {NAMED}")
    op.execute(RECORDED)


def downgrade() -> None:
    """Remove them with all hits: a release before runs nothing past watches."""
    op.execute("DROP TABLE watch_progress, watch_calls, watch_hours, watch_hits, watches")
