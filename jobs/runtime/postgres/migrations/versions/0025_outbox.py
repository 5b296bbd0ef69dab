"""What billing publishes: windows have a version, corrections a number; what is not in Kafka yet is written down."""

from alembic import op

revision = "0025"
down_revision = "0024"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""

SCHEMA = f"""
ALTER TABLE usage_windows ADD COLUMN version bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN usage_windows.version IS
    'Grows with every change: the position in usage below which all that is of this window is in it. 0: of a release '
    'before versions.';

CREATE TABLE publications (
    topic       text PRIMARY KEY,
    sent_number bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE publications IS 'A row for each topic that billing publishes.';
COMMENT ON COLUMN publications.sent_number IS 'Kafka has every correction up to this number. Windows: not used.';

CREATE TABLE unsent_windows (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    window_start timestamptz NOT NULL,
    account      text NOT NULL,
    version      bigint NOT NULL,
    changed_at   timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE unsent_windows IS
    'Windows of this minute and account that have this version or a higher one are not in Kafka yet.';
ALTER TABLE unsent_windows ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON unsent_windows FOR SELECT USING {NAMED};

ALTER TABLE corrections ADD COLUMN number bigint;
"""

# What there is gets its number in the order of usage, which is the order of each window.
NUMBER = """
UPDATE corrections SET number = place
FROM (SELECT usage_lsn, meter, row_number() OVER (ORDER BY usage_lsn, meter) AS place FROM corrections) AS placed
WHERE (corrections.usage_lsn, corrections.meter) = (placed.usage_lsn, placed.meter);
ALTER TABLE corrections ALTER number SET NOT NULL, ALTER number ADD GENERATED ALWAYS AS IDENTITY;
SELECT setval(pg_get_serial_sequence('corrections', 'number'), (SELECT count(*) + 1 FROM corrections), false);
CREATE UNIQUE INDEX corrections_by_number ON corrections (number);
COMMENT ON COLUMN corrections.number IS 'The order in which they were made, and are published; there may be gaps.';
"""

# An older billing that still runs would change windows without a word.
FENCE = "UPDATE jobs SET epoch = epoch + 1 WHERE job = 'billing'"


def upgrade() -> None:
    """Make them; billing tells Kafka of all that there is when it starts."""
    op.execute(FENCE)
    op.execute(SCHEMA)
    op.execute(NUMBER)


def downgrade() -> None:
    """Remove it again."""
    op.execute("ALTER TABLE corrections DROP COLUMN number; ALTER TABLE usage_windows DROP COLUMN version")
    op.execute("DROP TABLE unsent_windows, publications")
