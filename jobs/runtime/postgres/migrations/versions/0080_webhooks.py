"""Webhooks: endpoints, an outbox of events that triggers fill, one delivery per event and endpoint, every attempt."""

from alembic import op

revision = "0080"
down_revision = "0079"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""
TABLES = """
CREATE TABLE webhook_endpoints (
    endpoint        text PRIMARY KEY,
    url             text NOT NULL CHECK (url <> ''),
    events          text[] NOT NULL CHECK (cardinality(events) > 0),
    accounts        text[] NOT NULL DEFAULT '{}',
    note            text CHECK (note <> ''),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by      text NOT NULL CHECK (changed_by <> ''),
    disabled_at     timestamptz,
    disabled_reason text CHECK (disabled_reason <> ''),
    paused_until    timestamptz
);
COMMENT ON TABLE webhook_endpoints IS 'Where events are posted, each with the types and accounts that it gets.';

CREATE TABLE webhook_secrets (
    endpoint   text NOT NULL REFERENCES webhook_endpoints,
    secret     text NOT NULL CHECK (secret ~ '^wh(sec|sk)_'),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL CHECK (created_by <> ''),
    expires_at timestamptz,
    PRIMARY KEY (endpoint, secret)
);
COMMENT ON TABLE webhook_secrets IS 'By which calls are signed: all of an endpoint that have not expired sign.';

CREATE TABLE webhook_events (
    number   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text NOT NULL UNIQUE CHECK (event_id ~ '^evt_[0-9a-f]{32}$'),
    type     text NOT NULL,
    account  text NOT NULL,
    made_at  timestamptz NOT NULL DEFAULT now(),
    body     text NOT NULL
);
COMMENT ON TABLE webhook_events IS
    'The outbox: events that an endpoint gets, written in the transaction that made what they are about.';
COMMENT ON COLUMN webhook_events.event_id IS 'Made from what the event is about, so nothing has two.';

CREATE TABLE webhook_deliveries (
    endpoint        text NOT NULL REFERENCES webhook_endpoints,
    number          bigint NOT NULL REFERENCES webhook_events ON DELETE CASCADE,
    account         text NOT NULL,
    state           text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'delivered', 'dead')),
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    settled_at      timestamptz,
    PRIMARY KEY (number, endpoint),
    CONSTRAINT settled_at_of_what_waits_no_more CHECK ((state = 'waiting') = (settled_at IS NULL))
);
CREATE INDEX webhook_deliveries_waiting ON webhook_deliveries (endpoint, account, number) WHERE state = 'waiting';
CREATE INDEX webhook_deliveries_dead ON webhook_deliveries (endpoint, number) WHERE state = 'dead';
COMMENT ON TABLE webhook_deliveries IS
    'An event at one endpoint. The oldest that waits holds all later ones of its endpoint and account.';

CREATE TABLE webhook_attempts (
    number       bigint NOT NULL,
    endpoint     text NOT NULL,
    attempted_at timestamptz NOT NULL,
    account      text NOT NULL,
    status       smallint,
    error        text,
    duration_ms  integer NOT NULL,
    FOREIGN KEY (number, endpoint) REFERENCES webhook_deliveries ON DELETE CASCADE
);
CREATE INDEX webhook_attempts_of ON webhook_attempts (number, endpoint, attempted_at);
COMMENT ON TABLE webhook_attempts IS 'The delivery log: every POST that was tried, and what came of it.';
"""

# Functions run with the rights of who writes, in Weir's own schema, whatever the session's search path.
FUNCTIONS = """
CREATE FUNCTION webhook_is_due(event_type text, of_account text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.webhook_endpoints
        WHERE disabled_at IS NULL AND event_type = ANY (events) AND (accounts = '{{}}' OR of_account = ANY (accounts))
    )
$$;

CREATE FUNCTION webhook_event_id(event_type text, about jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
    SELECT 'evt_' || left(encode(sha256(convert_to(event_type || about::text, 'UTF8')), 'hex'), 32)
$$;

CREATE FUNCTION webhook_body(event_type text, data jsonb) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog SET timezone = 'UTC' AS $$
    SELECT jsonb_build_object('type', event_type, 'timestamp', now(), 'data', data)::text
$$;

CREATE FUNCTION queue_webhook_deliveries() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO {schema}.webhook_deliveries (endpoint, number, account)
    SELECT e.endpoint, added.number, added.account
    FROM added JOIN {schema}.webhook_endpoints AS e
      ON added.type = ANY (e.events) AND (e.accounts = '{{}}' OR added.account = ANY (e.accounts))
    WHERE e.disabled_at IS NULL
    ORDER BY added.number, e.endpoint;
    RETURN NULL;
END $$;
CREATE TRIGGER queue_webhook_deliveries AFTER INSERT ON webhook_events REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION queue_webhook_deliveries();
"""

# What an event is about, and its data. Amounts are texts with all digits. Nothing is read where no endpoint wants it.
SOURCE = """
CREATE FUNCTION webhook_of_{table}() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog SET timezone = 'UTC' AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.webhook_endpoints WHERE disabled_at IS NULL AND events && '{{{types}}}') THEN
        INSERT INTO {schema}.webhook_events (event_id, type, account, body)
        SELECT {schema}.webhook_event_id(type, about), type, account, {schema}.webhook_body(type, data)
        FROM ({rows}) AS made
        WHERE {schema}.webhook_is_due(type, account)
        ORDER BY place
        ON CONFLICT (event_id) DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER webhook_of_inserted AFTER INSERT ON {table} REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION webhook_of_{table}();
"""
SOURCES = {
    "corrections": (
        "weir.correction.created",
        """
        SELECT 'weir.correction.created' AS type, account, number AS place,
               jsonb_build_array(usage_lsn, meter) AS about,
               jsonb_build_object(
                   'correction', usage_lsn || '/' || meter, 'number', number, 'account', account, 'model', model,
                   'meter', meter, 'window_start', window_start, 'period', period, 'cause', cause,
                   'currency', currency, 'old_quantity', old_quantity::text, 'new_quantity', new_quantity::text,
                   'old_amount', old_amount::text, 'new_amount', new_amount::text
               ) AS data
        FROM added
        """,
    ),
    "stragglers": (
        "weir.straggler.held",
        """
        SELECT 'weir.straggler.held' AS type, account, usage_lsn AS place, jsonb_build_array(usage_lsn, meter) AS about,
               jsonb_build_object(
                   'straggler', usage_lsn || '/' || meter, 'account', account, 'model', model, 'meter', meter,
                   'window_start', window_start, 'received_at', received_at, 'quantity', quantity::text,
                   'unit_price', unit_price::text, 'currency', currency, 'hold_until', hold_until,
                   'hold_expires', hold_expires
               ) AS data
        FROM added WHERE decision = 'hold'
        """,
    ),
    "invoice_events": (
        "weir.invoice.issued,weir.invoice.voided",
        """
        SELECT 'weir.invoice.' || lower(added.state) AS type, added.account, added.sequence AS place,
               jsonb_build_array(added.invoice) AS about,
               jsonb_build_object(
                   'invoice', i.invoice, 'account', i.account, 'kind', i.kind, 'period', to_char(i.period, 'YYYY-MM'),
                   'currency', i.currency, 'total', i.total::text, 'replaces', i.replaces, 'hash', added.hash
               ) AS data
        FROM added JOIN {schema}.invoices AS i USING (invoice) WHERE added.state IN ('Issued', 'Voided')
        """,
    ),
}
RECORDED = """
CREATE CONSTRAINT TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON webhook_endpoints
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION record_change('changed_by', 'disabled_reason', 'paused_until');
CREATE CONSTRAINT TRIGGER record_new AFTER INSERT ON webhook_secrets
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION record_change('created_by', '', 'secret');
CREATE CONSTRAINT TRIGGER record_end AFTER UPDATE OR DELETE ON webhook_secrets
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION record_change('', '', 'secret');
"""
GUARDED = ("webhook_events", "webhook_deliveries", "webhook_attempts")


def upgrade() -> None:
    """Make the tables, empty: without an endpoint no trigger writes anything."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute(TABLES + FUNCTIONS.format(schema=schema) + RECORDED)
    for table in GUARDED:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY reads_named_accounts ON {table} FOR SELECT USING {NAMED}")
    for table, (types, rows) in SOURCES.items():
        op.execute(SOURCE.format(table=table, types=types, rows=rows.format(schema=schema), schema=schema))


def downgrade() -> None:
    """Remove them; a downgrade is refused while deliveries wait."""
    for table in SOURCES:
        op.execute(f"DROP TRIGGER webhook_of_inserted ON {table}; DROP FUNCTION webhook_of_{table}()")
    op.execute(
        "DROP TABLE webhook_attempts, webhook_deliveries, webhook_events, webhook_secrets, webhook_endpoints;"
        "DROP FUNCTION queue_webhook_deliveries(), webhook_is_due(text, text), webhook_event_id(text, jsonb),"
        " webhook_body(text, jsonb)"
    )
