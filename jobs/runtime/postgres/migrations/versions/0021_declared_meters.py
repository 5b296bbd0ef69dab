"""What each meter means, and which are declared now: a name keeps its meaning, also when it is declared no more."""

from alembic import op

revision = "0021"
down_revision = "0020"

SCHEMA = """
CREATE TABLE meters (
    meter       text PRIMARY KEY CHECK (meter ~ '^[a-z][a-z0-9_]{0,62}$'),
    unit        text NOT NULL CHECK (unit <> ''),
    sums        text,
    within      text,
    is_declared boolean NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE meters IS 'Every meter that was ever declared; the applications write it when they start.';
COMMENT ON COLUMN meters.sums IS 'The column of the journal that it adds up; null: it counts outcomes.';
COMMENT ON COLUMN meters.within IS 'The meter that counts these units, too: a total of the unit leaves them out.';
INSERT INTO meters (meter, unit, sums, within, is_declared) VALUES
    ('requests', 'request', null, null, true),
    ('input_tokens', 'token', 'input_tokens', null, true),
    ('output_tokens', 'token', 'output_tokens', null, true),
    ('cached_tokens', 'token', 'cached_tokens', 'input_tokens', true);
"""


def upgrade() -> None:
    """Begin with the meters that every earlier release had."""
    op.execute(SCHEMA)


def downgrade() -> None:
    """Remove it again."""
    op.execute("DROP TABLE meters")
