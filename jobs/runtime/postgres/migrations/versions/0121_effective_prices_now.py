"""`catalog.effective_prices_now`: the rows of `catalog.effective_prices` as a table, which ingestion keeps.

Each change of accounts, plans and prices notes whose rows it changes in `catalog.effective_prices_due`, in its own
transaction, and each fold when the clock will change them next. So a reader knows from the same snapshot which accounts
the table is right for. The view stays the definition: the fold reads it.
"""

from alembic import op

revision = "0121"
down_revision = "0120"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""
# A note about a plan is seen by whose plan it is: else their rows would seem right while they are not.
NOTED = f"""(
    {NAMED}
    OR account = '' AND (plan = '' OR plan IN (SELECT plan FROM catalog.account_history))
)"""

# No key: models may be as long as an entry of an index, and the fold alone writes.
TABLES = f"""
CREATE TABLE catalog.effective_prices_now (
    account        text NOT NULL,
    account_name   text NOT NULL,
    plan           text NOT NULL,
    plan_name      text NOT NULL,
    currency       text NOT NULL,
    model          text NOT NULL,
    meter          text NOT NULL,
    unit_price     numeric,
    effective_from timestamptz NOT NULL,
    in_force_until timestamptz,
    account_from   timestamptz NOT NULL,
    changed_at     timestamptz,
    terms          jsonb
);
CREATE INDEX effective_prices_now_by_account ON catalog.effective_prices_now (account);
COMMENT ON TABLE catalog.effective_prices_now IS
    'The rows of catalog.effective_prices, kept by ingestion. Right for each account without a note that is due.';
ALTER TABLE catalog.effective_prices_now ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON catalog.effective_prices_now FOR SELECT USING {NAMED};

CREATE TABLE catalog.effective_prices_due (
    account  text NOT NULL DEFAULT '',
    plan     text NOT NULL DEFAULT '',
    due_at   timestamptz NOT NULL DEFAULT '-infinity',
    noted_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX effective_prices_due_by_instant ON catalog.effective_prices_due (due_at);
CREATE INDEX effective_prices_due_by_account ON catalog.effective_prices_due (account);
COMMENT ON TABLE catalog.effective_prices_due IS
    'Whose rows of catalog.effective_prices_now are to be read again from due_at on. Both names empty: everybody''s.';
COMMENT ON COLUMN catalog.effective_prices_due.due_at IS
    '-infinity: a row of the catalog changed. Else when a price or account begins or ends.';
ALTER TABLE catalog.effective_prices_due ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON catalog.effective_prices_due FOR SELECT USING {NOTED};

CREATE TABLE catalog.effective_prices_progress (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    as_of   timestamptz NOT NULL
);
COMMENT ON TABLE catalog.effective_prices_progress IS
    'The instant of the last fold: a reader of an earlier one reads catalog.effective_prices.';
"""

# Columns of what people edit may be renamed (`catalog.missing_columns`): then everybody's rows are read again.
NOTE = """
CREATE FUNCTION catalog.note_effective_prices() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO catalog.effective_prices_due (account, plan)
        SELECT DISTINCT CASE TG_ARGV[0] WHEN 'account' THEN name ELSE '' END,
               CASE TG_ARGV[0] WHEN 'plan' THEN name ELSE '' END
        FROM (
            SELECT coalesce(to_jsonb(earlier) ->> TG_ARGV[0], '') AS name FROM earlier
            UNION SELECT coalesce(to_jsonb(changed) ->> TG_ARGV[0], '') FROM changed
        ) AS names;
    ELSE
        INSERT INTO catalog.effective_prices_due (account, plan)
        SELECT DISTINCT CASE TG_ARGV[0] WHEN 'account' THEN name ELSE '' END,
               CASE TG_ARGV[0] WHEN 'plan' THEN name ELSE '' END
        FROM (SELECT coalesce(to_jsonb(changed) ->> TG_ARGV[0], '') AS name FROM changed) AS names;
    END IF;
    RETURN NULL;
END $$;
"""
SIDES = {"account_history": "account", "plans": "plan", "prices": "plan", "ended_prices": "plan"}
EVENTS = {
    "insert": "NEW TABLE AS changed",
    "update": "OLD TABLE AS earlier NEW TABLE AS changed",
    "delete": "OLD TABLE AS changed",
}
TRIGGER = """
CREATE TRIGGER note_effective_prices_{event} AFTER {event} ON catalog.{table} REFERENCING {tables}
    FOR EACH STATEMENT EXECUTE FUNCTION catalog.note_effective_prices('{name}')
"""
# The first fold begins with this, in bounded steps; until it is done the view is read.
EVERYBODY = "INSERT INTO catalog.effective_prices_due DEFAULT VALUES"


def upgrade() -> None:
    """Make the tables, and have everybody's rows read by the next driver of ingestion."""
    op.execute(TABLES)
    op.execute(NOTE)
    for table, name in SIDES.items():
        for event, tables in EVENTS.items():
            op.execute(TRIGGER.format(event=event, table=table, tables=tables, name=name))
    op.execute(EVERYBODY)


def downgrade() -> None:
    """Remove them: the view needs none."""
    for table in SIDES:
        for event in EVENTS:
            op.execute(f"DROP TRIGGER note_effective_prices_{event} ON catalog.{table}")
    op.execute("DROP FUNCTION catalog.note_effective_prices()")
    op.execute(
        "DROP TABLE catalog.effective_prices_progress, catalog.effective_prices_due, catalog.effective_prices_now"
    )
