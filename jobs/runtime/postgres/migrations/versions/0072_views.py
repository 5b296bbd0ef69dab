"""What analytics measures of outcomes: the declared views, and their panes of a minute."""

from alembic import op

revision = "0072"
down_revision = "0067"

# The rule of migration 0003: who names no account sees none. A pane of no single account is for readers of all.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""
SCHEMA = f"""
CREATE TABLE analytics_views (
    view_id        integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    view           text NOT NULL,
    version        text NOT NULL,
    definition     jsonb NOT NULL,
    first_position bigint NOT NULL,
    is_declared    boolean NOT NULL DEFAULT true,
    declared_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (view, version)
);
COMMENT ON TABLE analytics_views IS 'Views that analytics measures, or has measured, by their definition.';
CREATE TABLE analytics_panes (
    view_id      integer NOT NULL REFERENCES analytics_views,
    window_start timestamptz NOT NULL,
    account      text,
    keys         jsonb NOT NULL,
    keys_digest  bytea GENERATED ALWAYS AS (sha256(jsonb_send(keys))) STORED,
    measures     jsonb NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (view_id, window_start, keys_digest)
);
COMMENT ON COLUMN analytics_panes.keys_digest IS 'Six texts are more than an index takes: they are known by a digest.';
CREATE INDEX analytics_panes_by_start ON analytics_panes (window_start);
COMMENT ON TABLE analytics_panes IS
    'What each view measures of the outcomes of a minute, by key: numbers, and sketches that can be merged.';
ALTER TABLE analytics_panes ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON analytics_panes FOR SELECT USING {NAMED};
"""


def upgrade() -> None:
    """Make both, empty: analytics fills them from the first row of usage on."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove them, and all rows of analytics, which no release before knows: after an upgrade it begins at row 1."""
    op.execute("DROP TABLE analytics_panes, analytics_views")
    for table in ("positions", "batches", "jobs", "exits", "rules"):
        op.execute(f"DELETE FROM {table} WHERE job = 'analytics'")
