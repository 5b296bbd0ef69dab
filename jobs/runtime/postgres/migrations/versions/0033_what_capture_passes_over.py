"""What the capture of the catalog would pass over, or joins could not read, Postgres refuses.

Debezium skips a TRUNCATE: prices would hold for ever that the database has no more. An instant without a date, or of a
year that no calendar has, would make a dead letter of the row, and of all that it says. And a clock that was ahead
leaves beats that say until when the catalog is captured in a time which has not come: they count no more.
"""

from alembic import op

revision = "0033"
down_revision = "0032"

TRUNCATED = """
CREATE FUNCTION catalog.refuse_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION 'TRUNCATE of catalog.% is told to nobody, and usage would go on at what it had: DELETE the rows',
        TG_TABLE_NAME USING ERRCODE = 'feature_not_supported';
END $$;
"""
BEATS = """
CREATE OR REPLACE FUNCTION catalog.beat() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    DELETE FROM catalog.beats WHERE beat_at < moment - interval '1 hour'{ahead};
    INSERT INTO catalog.beats VALUES (moment, pg_current_wal_insert_lsn()) ON CONFLICT DO NOTHING;
END $$;
CREATE OR REPLACE VIEW catalog.capture AS
SELECT coalesce(slot.active, false) AS is_active,
       (
           SELECT max(beat_at) FROM catalog.beats WHERE position < slot.confirmed_flush_lsn{counts}
       ) AS captured_until,
       (SELECT min(beat_at) FROM catalog.beats WHERE true{counts}) AS first_beat_at,
       ARRAY(
           SELECT format('catalog.%s.%s', table_name, column_name) FROM catalog.missing_columns ORDER BY 1
       ) AS missing_columns
FROM (SELECT) AS one
LEFT JOIN pg_replication_slots AS slot
    ON slot.database = current_database() AND slot.plugin = 'pgoutput' AND starts_with(slot.slot_name, 'weir_catalog');
"""
TABLES = ("plans", "prices", "accounts", "decisions")
DATED = ("prices", "accounts")


def upgrade() -> None:
    """Refuse both from now on; a row that is there already stays."""
    op.execute(BEATS.format(ahead=" OR beat_at > moment", counts=" AND beat_at <= clock_timestamp()"))
    op.execute(TRUNCATED)
    for table in TABLES:
        op.execute(
            f"CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON catalog.{table} "
            "EXECUTE FUNCTION catalog.refuse_truncate()"
        )
    for table in DATED:
        op.execute(
            f"ALTER TABLE catalog.{table} ADD CONSTRAINT {table}_effective_from_is_a_date CHECK "
            "(effective_from >= '0001-01-02 00:00:00+00' AND effective_from < '9999-12-31 00:00:00+00') NOT VALID"
        )


def downgrade() -> None:
    """Allow both again."""
    op.execute(BEATS.format(ahead="", counts=""))
    for table in DATED:
        op.execute(f"ALTER TABLE catalog.{table} DROP CONSTRAINT {table}_effective_from_is_a_date")
    for table in TABLES:
        op.execute(f"DROP TRIGGER refuse_truncate ON catalog.{table}")
    op.execute("DROP FUNCTION catalog.refuse_truncate()")
