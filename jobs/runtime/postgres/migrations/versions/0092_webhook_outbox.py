"""One outbox row per event, with the endpoints that get it: the sender makes the deliveries, not who writes."""

from importlib import import_module
from typing import Any

from alembic import op

revision = "0092"
down_revision = "0088"

BEFORE: Any = import_module("jobs.runtime.postgres.migrations.versions.0080_webhooks")

TABLES = """
ALTER TABLE webhook_events ADD COLUMN endpoints text[] NOT NULL DEFAULT '{}';
ALTER TABLE webhook_events ALTER COLUMN endpoints DROP DEFAULT;
COMMENT ON COLUMN webhook_events.endpoints IS 'Who gets it: the endpoints that wanted it when it was made.';

CREATE TABLE webhook_position (
    is_the_one boolean PRIMARY KEY DEFAULT true CHECK (is_the_one),
    queued_to  bigint NOT NULL
);
COMMENT ON TABLE webhook_position IS 'Up to which event the sender has made deliveries: one row.';
INSERT INTO webhook_position (queued_to) SELECT coalesce(max(number), 0) FROM webhook_events;

CREATE TABLE webhook_removals (
    removed_at    timestamptz NOT NULL DEFAULT now(),
    endpoint      text NOT NULL,
    state         text NOT NULL CHECK (state IN ('waiting', 'delivered', 'dead')),
    cause         text NOT NULL CHECK (cause IN ('age', 'endpoint')),
    deliveries    bigint NOT NULL CHECK (deliveries > 0),
    first_number  bigint NOT NULL,
    last_number   bigint NOT NULL,
    first_made_at timestamptz NOT NULL,
    last_made_at  timestamptz NOT NULL
);
CREATE INDEX webhook_removals_of ON webhook_removals (endpoint, state);
COMMENT ON TABLE webhook_removals IS 'Deliveries that were removed, in sums: by age, or with their endpoint.';
"""

# To add a type of event, make one more trigger like those of SOURCES, and name the type in webhooks/event_types.py.
# It gives the types that the statement can write, and a query over the rows `added`, with the columns type, account,
# place (orders the events of a statement), about (what makes the event's id) and data.
# It runs with the rights of who writes, whatever the session's search path, and reads nothing unless an endpoint wants
# one of the types. No endpoint's row is locked. An endpoint may name a type or an account twice, and gets one delivery.
FUNCTION = """
CREATE FUNCTION write_webhook_events() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog SET timezone = 'UTC' AS $$
BEGIN
    IF EXISTS (
        SELECT FROM {schema}.webhook_endpoints WHERE disabled_at IS NULL AND events && string_to_array(TG_ARGV[0], ',')
    ) THEN
        EXECUTE format($statement$
            WITH of_all AS (
                SELECT type, array_agg(DISTINCT endpoint) AS endpoints
                FROM {schema}.webhook_endpoints CROSS JOIN unnest(events) AS type
                WHERE disabled_at IS NULL AND accounts = '{{}}' GROUP BY type
            ), of_account AS (
                SELECT type, account, array_agg(DISTINCT endpoint) AS endpoints
                FROM {schema}.webhook_endpoints CROSS JOIN unnest(events) AS type CROSS JOIN unnest(accounts) AS account
                WHERE disabled_at IS NULL GROUP BY type, account
            )
            INSERT INTO {schema}.webhook_events (event_id, type, account, body, endpoints)
            SELECT 'evt_' || left(encode(sha256(convert_to(type || about::text, 'UTF8')), 'hex'), 32), type, account,
                   jsonb_build_object('type', type, 'timestamp', now(), 'data', data)::text,
                   coalesce(of_all.endpoints, '{{}}') || coalesce(of_account.endpoints, '{{}}')
            FROM (%s) AS made LEFT JOIN of_all USING (type) LEFT JOIN of_account USING (type, account)
            WHERE of_all.endpoints IS NOT NULL OR of_account.endpoints IS NOT NULL
            ORDER BY place
            ON CONFLICT (event_id) DO NOTHING
        $statement$, TG_ARGV[1]);
    END IF;
    RETURN NULL;
END $$;
"""
TRIGGER = """
CREATE TRIGGER webhook_of_inserted AFTER INSERT ON {table} REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION write_webhook_events('{types}', $rows${rows}$rows$);
"""


def upgrade() -> None:
    """Write one row per event from now on; what was queued before stays queued."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute(TABLES + FUNCTION.format(schema=schema))
    for table, (types, rows) in BEFORE.SOURCES.items():
        op.execute(f"DROP TRIGGER webhook_of_inserted ON {table}; DROP FUNCTION webhook_of_{table}()")
        op.execute(TRIGGER.format(table=table, types=types, rows=rows.format(schema=schema)))
    op.execute(
        "DROP TRIGGER queue_webhook_deliveries ON webhook_events; DROP FUNCTION queue_webhook_deliveries(),"
        " webhook_is_due(text, text), webhook_event_id(text, jsonb), webhook_body(text, jsonb)"
    )


def downgrade() -> None:
    """Make the deliveries of all events, as the triggers before did, and let them do so again."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute(
        "INSERT INTO webhook_deliveries (endpoint, number, account)"
        " SELECT e.endpoint, number, account FROM webhook_events CROSS JOIN unnest(endpoints) AS wanted"
        " JOIN webhook_endpoints AS e ON e.endpoint = wanted WHERE number > (SELECT queued_to FROM webhook_position)"
        " ORDER BY number, e.endpoint"
    )
    for table in BEFORE.SOURCES:
        op.execute(f"DROP TRIGGER webhook_of_inserted ON {table}")
    op.execute(
        "DROP FUNCTION write_webhook_events(); DROP TABLE webhook_removals, webhook_position;"
        "ALTER TABLE webhook_events DROP COLUMN endpoints"
    )
    op.execute(BEFORE.FUNCTIONS.format(schema=schema))
    for table, (types, rows) in BEFORE.SOURCES.items():
        op.execute(BEFORE.SOURCE.format(table=table, types=types, rows=rows.format(schema=schema), schema=schema))
