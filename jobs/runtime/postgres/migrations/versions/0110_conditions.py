"""Silent sources and spikes of dead letters: a row while each lasts, and webhooks when it appears and when it goes."""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0110"
down_revision = "0108"

WEBHOOKS: Any = import_module("jobs.runtime.postgres.migrations.versions.0092_webhook_outbox")

# They name sources and records of any account, so only who sees all accounts may read them.
TABLES = """
CREATE TABLE silent_sources (
    source       text PRIMARY KEY,
    account      text,
    last_seen_at timestamptz NOT NULL
);
COMMENT ON TABLE silent_sources IS 'Sources that are silent and not retired, as ingestion saw them last.';

CREATE TABLE dead_letter_minutes (
    reason  text NOT NULL,
    minute  timestamptz NOT NULL,
    records bigint NOT NULL CHECK (records > 0),
    PRIMARY KEY (reason, minute)
);
COMMENT ON TABLE dead_letter_minutes IS 'Records that were rejected in each of the last ten minutes, by reason.';

CREATE TABLE dead_letter_spikes (
    reason   text PRIMARY KEY,
    began_at timestamptz NOT NULL DEFAULT now(),
    records  bigint NOT NULL CHECK (records > 0)
);
COMMENT ON TABLE dead_letter_spikes IS 'Reasons for which many records are rejected now, with how many they first were.'
"""
GUARDED = ("silent_sources", "dead_letter_minutes", "dead_letter_spikes")
TRIGGER = """
CREATE TRIGGER webhook_of_{what} AFTER {action} ON {table} REFERENCING {side} TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION write_webhook_events('{type}', $rows${rows}$rows$);
"""
# Of no account: a source and a reason are of whoever operates, and one that sends for several accounts concerns each.
CALLED = {
    ("silent_sources", "INSERT", "weir.source.silent"): """
        SELECT 'weir.source.silent' AS type, '' AS account, jsonb_build_array(source, last_seen_at) AS about,
               jsonb_build_object('source', source, 'account', account, 'last_seen_at', last_seen_at) AS data,
               row_number() OVER (ORDER BY last_seen_at, source) AS place
        FROM added
    """,
    ("silent_sources", "DELETE", "weir.source.heard"): """
        SELECT 'weir.source.heard' AS type, '' AS account, jsonb_build_array(source, added.last_seen_at) AS about,
               jsonb_build_object(
                   'source', source, 'account', account, 'silent_since', added.last_seen_at,
                   'last_seen_at', heard.last_seen_at
               ) AS data,
               row_number() OVER (ORDER BY added.last_seen_at, source) AS place
        FROM added JOIN (
            SELECT source, max(last_seen_at) AS last_seen_at FROM {schema}.sources
            WHERE source IN (SELECT source FROM added) GROUP BY source
        ) AS heard USING (source)
        WHERE heard.last_seen_at > added.last_seen_at
    """,
    ("dead_letter_spikes", "INSERT", "weir.dead_letter.spike"): """
        SELECT 'weir.dead_letter.spike' AS type, '' AS account, jsonb_build_array(reason, began_at) AS about,
               jsonb_build_object(
                   'reason', reason, 'began_at', began_at, 'records', records, 'within', 'PT10M'
               ) AS data,
               row_number() OVER (ORDER BY reason) AS place
        FROM added
    """,
    ("dead_letter_spikes", "DELETE", "weir.dead_letter.spike_ended"): """
        SELECT 'weir.dead_letter.spike_ended' AS type, '' AS account, jsonb_build_array(reason, began_at) AS about,
               jsonb_build_object('reason', reason, 'began_at', began_at) AS data,
               row_number() OVER (ORDER BY reason) AS place
        FROM added
    """,
}


def upgrade() -> None:
    """Create them, empty: ingestion fills them within a minute."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute(TABLES)
    for table in GUARDED:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY reads_everything ON {table} FOR SELECT"
            " USING ((SELECT current_setting('weir.accounts', true) = '*'))"
        )
    for (table, action, kind), rows in CALLED.items():
        is_insert = action == "INSERT"
        values = {"what": "inserted" if is_insert else "deleted", "side": "NEW" if is_insert else "OLD"}
        of_schema = rows.format(schema=schema)
        op.execute(TRIGGER.format(table=table, action=action, type=kind, rows=of_schema, **values))


def downgrade() -> None:
    """Remove them; what waits to be delivered is delivered."""
    op.execute("DROP TABLE silent_sources, dead_letter_minutes, dead_letter_spikes")
