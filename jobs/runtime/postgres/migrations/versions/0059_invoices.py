"""Invoices: rows that nobody can change, chained by hashes. Their states are rows that are appended."""

from alembic import op

revision = "0059"
down_revision = "0058"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""
TABLES = ("invoices", "invoice_lines", "invoice_events")
SCHEMA = """
CREATE TABLE invoices (
    invoice        text PRIMARY KEY,
    issuer         text NOT NULL CHECK (issuer <> ''),
    number         bigint NOT NULL CHECK (number > 0),
    account        text NOT NULL,
    kind           text NOT NULL CHECK (kind IN ('invoice', 'credit_note')),
    period         date NOT NULL CHECK (extract(day FROM period) = 1),
    period_start   timestamptz NOT NULL,
    period_end     timestamptz NOT NULL CHECK (period_end > period_start),
    timezone       text NOT NULL,
    currency       text NOT NULL,
    minor_unit     smallint NOT NULL CHECK (minor_unit BETWEEN 0 AND 12),
    rounding       text NOT NULL CHECK (rounding IN ('half-even', 'half-up')),
    lines          integer NOT NULL CHECK (lines > 0),
    total          numeric NOT NULL CHECK (total <> 'NaN'),
    residual       numeric NOT NULL CHECK (residual <> 'NaN'),
    usage_position bigint NOT NULL,
    frontier       timestamptz NOT NULL,
    audit_id       bigint NOT NULL,
    replaces       text REFERENCES invoices,
    UNIQUE (issuer, number),
    CONSTRAINT invoices_once UNIQUE NULLS NOT DISTINCT (account, period, currency, replaces)
);
COMMENT ON TABLE invoices IS 'Invoices and credit notes. Rows cannot be changed or deleted.';
COMMENT ON CONSTRAINT invoices_once ON invoices IS 'Two closes at once cannot issue the same month twice.';

CREATE TABLE invoice_lines (
    invoice          text NOT NULL REFERENCES invoices,
    line             integer NOT NULL CHECK (line > 0),
    account          text NOT NULL,
    kind             text NOT NULL CHECK (kind <> ''),
    charge_class     text CHECK (charge_class = 'Correction'),
    original_period  date NOT NULL,
    corrects_invoice text,
    corrects_line    integer,
    model            text,
    meter            text,
    price_version    bigint,
    tier             text,
    unit_price       numeric,
    quantity         numeric NOT NULL CHECK (quantity <> 'NaN'),
    exact_amount     numeric CHECK (exact_amount <> 'NaN'),
    amount           numeric NOT NULL CHECK (amount <> 'NaN'),
    residual         numeric NOT NULL CHECK (residual <> 'NaN'),
    hash             text NOT NULL,
    PRIMARY KEY (invoice, line),
    FOREIGN KEY (corrects_invoice, corrects_line) REFERENCES invoice_lines
);
CREATE INDEX invoice_lines_by_period ON invoice_lines (original_period, account);
COMMENT ON TABLE invoice_lines IS 'The lines of invoices, each rounded once. Rows cannot be changed or deleted.';

CREATE TABLE invoice_events (
    account    text NOT NULL,
    sequence   bigint NOT NULL CHECK (sequence > 0),
    invoice    text NOT NULL REFERENCES invoices,
    state      text NOT NULL CHECK (state IN ('Open', 'Issued', 'Voided')),
    at         timestamptz NOT NULL,
    made_by    text NOT NULL CHECK (made_by <> ''),
    reason     text CHECK (reason <> ''),
    allowed    text[] NOT NULL DEFAULT '{}',
    document   text NOT NULL,
    previous   text NOT NULL,
    hash       text NOT NULL,
    PRIMARY KEY (account, sequence),
    UNIQUE (invoice, state)
);
COMMENT ON TABLE invoice_events IS
    'The states of invoices, appended, each with the hash of the one before it. Rows cannot be changed or deleted.';

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: what was issued never changes', lower(TG_OP), TG_TABLE_NAME
        USING HINT = 'Void the invoice and issue it again: weir invoices void.';
END $$;

-- The tables are in the schema of the one that the trigger is on, whatever the caller's search path.
CREATE FUNCTION refuse_line_of_issued() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    issued text;
BEGIN
    EXECUTE format(
        'SELECT min(added.invoice) FROM added JOIN %I.invoice_events AS events USING (invoice) WHERE state <> %L',
        TG_TABLE_SCHEMA, 'Open'
    ) INTO issued;
    IF issued IS NOT NULL THEN
        RAISE EXCEPTION 'a line of % is refused: it was issued', issued;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION refuse_other_state() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    earlier bigint;
    last bigint;
BEGIN
    EXECUTE format(
        'SELECT count(*) FILTER (WHERE invoice = $1), coalesce(max(sequence), 0) FROM %I.invoice_events '
        'WHERE account = $2', TG_TABLE_SCHEMA
    ) INTO earlier, last USING NEW.invoice, NEW.account;
    IF NEW.state <> coalesce((ARRAY['Open', 'Issued', 'Voided'])[earlier + 1], '') THEN
        RAISE EXCEPTION '% is refused as state % of %: the states are Open, Issued, Voided',
            NEW.state, earlier + 1, NEW.invoice;
    END IF;
    IF NEW.sequence <> last + 1 THEN
        RAISE EXCEPTION 'event % of % does not follow the last one, %', NEW.sequence, NEW.account, last;
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER refuse_line_of_issued AFTER INSERT ON invoice_lines REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_line_of_issued();
CREATE TRIGGER refuse_other_state BEFORE INSERT ON invoice_events
    FOR EACH ROW EXECUTE FUNCTION refuse_other_state();
ALTER TABLE invoice_lines ENABLE ALWAYS TRIGGER refuse_line_of_issued;
ALTER TABLE invoice_events ENABLE ALWAYS TRIGGER refuse_other_state;
"""


def _guarded(table: str) -> str:
    """Always: also for a session that replicates."""
    return f"""
    CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION refuse_change();
    CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
    ALTER TABLE {table} ENABLE ALWAYS TRIGGER refuse_change;
    ALTER TABLE {table} ENABLE ALWAYS TRIGGER refuse_truncate;
    ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
    CREATE POLICY reads_named_accounts ON {table} FOR SELECT USING {NAMED};
    """


def upgrade() -> None:
    """Make the tables and what guards them."""
    op.execute(SCHEMA + "".join(map(_guarded, TABLES)))


def downgrade() -> None:
    """Remove them; a downgrade is refused where an invoice was issued."""
    op.execute(
        "DROP TABLE invoice_events, invoice_lines, invoices;"
        "DROP FUNCTION refuse_change(), refuse_line_of_issued(), refuse_other_state()"
    )
