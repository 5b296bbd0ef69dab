"""The catalog is captured from the log of changes: what is published, since when an account is as it is, and beats.

An account without `effective_from` holds from the moment it was changed, which its row says (migration 0029): told
anew, by a snapshot, it begins when it began. Those of before began when the outbox told them.
"""

from alembic import op

revision = "0030"
down_revision = "0029"

SINCE = """
COMMENT ON COLUMN catalog.accounts.changed_at IS
    'When that was: without effective_from the row holds from then on. Of a row of releases that did not keep it: when '
    'it was told, or else when the catalog was first captured.';
-- Nobody changes an account here, so nobody is its author.
ALTER TABLE catalog.accounts DISABLE TRIGGER keep_author;
UPDATE catalog.accounts SET changed_at = coalesce(
    (
        SELECT date_trunc('milliseconds', told.committed_at)
        FROM catalog_outbox AS told, jsonb_to_record(told.after::jsonb)
            AS said (name text, plan text, currency text, timezone text, effective_from timestamptz)
        WHERE told.topic = 'catalog.accounts' AND told.key::jsonb ->> 'account' = accounts.account
          AND (said.name, said.plan, said.currency, said.timezone)
            = (accounts.name, accounts.plan, accounts.currency, accounts.timezone)
          AND said.effective_from IS NOT DISTINCT FROM accounts.effective_from
          AND NOT EXISTS (
              SELECT FROM catalog_outbox AS later
              WHERE (later.topic, later.key) = (told.topic, told.key) AND later.number > told.number
          )
    ),
    changed_at,
    now()
);
ALTER TABLE catalog.accounts ENABLE TRIGGER keep_author;
ALTER TABLE catalog.accounts ALTER changed_at SET NOT NULL;
"""

BEATS = """
CREATE TABLE catalog.beats (
    beat_at  timestamptz PRIMARY KEY,
    position pg_lsn NOT NULL
);
COMMENT ON TABLE catalog.beats IS
    'Written by the connector every few seconds: whatever was committed before beat_at stands in the log before '
    'position.';

CREATE FUNCTION catalog.beat() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    beat_at timestamptz := clock_timestamp();
BEGIN
    DELETE FROM catalog.beats AS old WHERE old.beat_at < clock_timestamp() - interval '1 hour';
    INSERT INTO catalog.beats VALUES (beat_at, pg_current_wal_insert_lsn()) ON CONFLICT DO NOTHING;
END $$;

-- A slot that is made anew begins behind all that its snapshot reads, and a beat may stand right there. Only one that
-- was read from it is behind the snapshot: then its own commit is confirmed.
CREATE VIEW catalog.capture AS
SELECT coalesce(slot.active, false) AS is_active,
       (SELECT max(beat_at) FROM catalog.beats WHERE position < slot.confirmed_flush_lsn) AS captured_until,
       (SELECT min(beat_at) FROM catalog.beats) AS first_beat_at
FROM (SELECT) AS one
LEFT JOIN pg_replication_slots AS slot
    ON slot.database = current_database() AND slot.plugin = 'pgoutput' AND starts_with(slot.slot_name, 'weir_catalog');
COMMENT ON VIEW catalog.capture IS
    'Whether the connector reads the log of changes, and until when whatever was committed is in Kafka.';
"""

PUBLISHED = """
ALTER TABLE catalog.accounts REPLICA IDENTITY FULL;
ALTER TABLE catalog.plans REPLICA IDENTITY FULL;
ALTER TABLE catalog.prices REPLICA IDENTITY FULL;
ALTER TABLE catalog.decisions REPLICA IDENTITY FULL;
CREATE PUBLICATION weir_catalog
    FOR TABLE catalog.plans, catalog.prices, catalog.accounts, catalog.decisions, catalog.beats;
"""


def upgrade() -> None:
    """Say since when accounts of before are as they are, then publish."""
    op.execute(SINCE)
    op.execute(BEATS)
    op.execute(PUBLISHED)


def downgrade() -> None:
    """Remove it again; a slot that was made keeps the log until somebody drops it."""
    op.execute("""
        DROP PUBLICATION weir_catalog;
        ALTER TABLE catalog.accounts REPLICA IDENTITY DEFAULT;
        ALTER TABLE catalog.plans REPLICA IDENTITY DEFAULT;
        ALTER TABLE catalog.prices REPLICA IDENTITY DEFAULT;
        ALTER TABLE catalog.decisions REPLICA IDENTITY DEFAULT;
        DROP VIEW catalog.capture;
        DROP FUNCTION catalog.beat();
        DROP TABLE catalog.beats;
        ALTER TABLE catalog.accounts ALTER changed_at DROP NOT NULL;
    """)
