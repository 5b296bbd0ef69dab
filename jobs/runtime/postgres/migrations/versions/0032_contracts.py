"""What each account pays for each meter, now or at any instant: `catalog.contracts`, a view that is never behind.

Read with the rights of whoever asks, so the policies of the tables decide what is seen. A price that was deleted goes
on until its end, and nothing takes its place then: a trigger keeps what the rows do not say any more.
"""

from alembic import op

revision = "0032"
down_revision = "0031"

# Instants that no event can have, and that no reader but Postgres knows (infinity): ingestion refuses such a change, so
# they begin and end nothing here either.
FIRST, LAST = "'0001-01-01 00:00:00Z'::timestamptz", "'9999-12-31 23:59:59.999999Z'::timestamptz"

ENDED = """
CREATE TABLE catalog.ended_prices (
    plan text NOT NULL,
    model text NOT NULL,
    meter text NOT NULL,
    currency text NOT NULL,
    effective_from timestamptz NOT NULL,
    unit_price numeric(20, 12) NOT NULL,
    changed_at timestamptz,
    ended_at timestamptz NOT NULL CHECK (ended_at > effective_from),
    PRIMARY KEY (plan, model, meter, currency, effective_from)
);
COMMENT ON TABLE catalog.ended_prices IS
    'Prices that were in force, or will be for a while, and were deleted: until ended_at. A trigger keeps it.';
ALTER TABLE catalog.ended_prices ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON catalog.ended_prices FOR SELECT
    USING (EXISTS (SELECT FROM catalog.plans WHERE plans.plan = ended_prices.plan));

CREATE FUNCTION catalog.keep_ended_price() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND coalesce(OLD.deleted_at, now()) > OLD.effective_from THEN
        INSERT INTO catalog.ended_prices VALUES (
            OLD.plan, OLD.model, OLD.meter, OLD.currency, OLD.effective_from, OLD.unit_price, OLD.changed_at,
            coalesce(OLD.deleted_at, now())
        );
    END IF;
    IF TG_OP <> 'DELETE' THEN
        DELETE FROM catalog.ended_prices AS e WHERE (e.plan, e.model, e.meter, e.currency, e.effective_from)
            = (NEW.plan, NEW.model, NEW.meter, NEW.currency, NEW.effective_from);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER keep_ended_price AFTER INSERT OR DELETE ON catalog.prices
    FOR EACH ROW EXECUTE FUNCTION catalog.keep_ended_price();
CREATE TRIGGER keep_renamed_price AFTER UPDATE ON catalog.prices FOR EACH ROW
    WHEN ((OLD.plan, OLD.model, OLD.meter, OLD.currency, OLD.effective_from)
        IS DISTINCT FROM (NEW.plan, NEW.model, NEW.meter, NEW.currency, NEW.effective_from))
    EXECUTE FUNCTION catalog.keep_ended_price();
"""

# Periods are made per plan, by the primary key of prices, and nothing that is compared is an expression: then Postgres
# knows how many rows there are, and takes one account by index and all of them in one pass. It puts the function into
# the statement that asks, which it would not with a search_path or with its owner's rights.
CONTRACTS = f"""
CREATE FUNCTION catalog.contracts_at(at timestamptz) RETURNS TABLE (
    account text, account_name text, plan text, plan_name text, currency text, model text, meter text,
    unit_price numeric, effective_from timestamptz, in_force_until timestamptz, account_from timestamptz,
    changed_at timestamptz
) LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT accounts.account, accounts.name, accounts.plan, plans.name, accounts.currency, periods.model, periods.meter,
           periods.unit_price, periods.effective_from, periods.in_force_until,
           coalesce(accounts.effective_from, accounts.changed_at),
           greatest(accounts.changed_at, plans.changed_at, periods.changed_at)
    FROM catalog.plans
    CROSS JOIN LATERAL (
        SELECT prices.model, prices.meter, prices.currency, prices.unit_price, prices.effective_from, prices.changed_at,
               least(
                   prices.ended_at,
                   lead(prices.effective_from) OVER (
                       PARTITION BY prices.model, prices.meter, prices.currency ORDER BY prices.effective_from
                   )
               ) AS in_force_until
        FROM (
            SELECT plan, model, meter, currency, unit_price, effective_from, changed_at, NULL::timestamptz AS ended_at
            FROM catalog.prices
            UNION ALL
            SELECT plan, model, meter, currency, unit_price, effective_from, changed_at, ended_at
            FROM catalog.ended_prices
        ) AS prices
        WHERE prices.plan = plans.plan AND prices.effective_from BETWEEN {FIRST} AND {LAST}
    ) AS periods
    JOIN catalog.accounts ON accounts.plan = plans.plan AND accounts.currency = periods.currency
    WHERE (
        accounts.effective_from BETWEEN {FIRST} AND at OR accounts.effective_from IS NULL AND accounts.changed_at <= at
    ) AND periods.effective_from <= at AND (periods.in_force_until > at OR periods.in_force_until IS NULL);
END;
COMMENT ON FUNCTION catalog.contracts_at(timestamptz) IS
    'The rows of accounts, plans and prices as they are now, joined as they are in force at an instant.';

CREATE FUNCTION catalog.contracts_right_until(at timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT least(
        (SELECT min(effective_from) FROM catalog.prices WHERE effective_from > at AND effective_from <= {LAST}),
        (SELECT min(effective_from) FROM catalog.ended_prices WHERE effective_from > at),
        (SELECT min(ended_at) FROM catalog.ended_prices WHERE ended_at > at),
        (SELECT min(effective_from) FROM catalog.accounts WHERE effective_from > at AND effective_from <= {LAST})
    );
END;
COMMENT ON FUNCTION catalog.contracts_right_until(timestamptz) IS
    'When the next price or account begins, or a price ends: until then what is in force at `at` stays, if nobody '
    'changes a row.';

CREATE VIEW catalog.contracts WITH (security_invoker = true) AS SELECT * FROM catalog.contracts_at(now());
COMMENT ON VIEW catalog.contracts IS
    'What each account pays for a unit of each meter now, as accounts, plans and prices say at this moment; what usage '
    'was priced with stands in joins'' versions.';
COMMENT ON COLUMN catalog.contracts.in_force_until IS
    'When the next price of the same plan, model, meter and currency begins, or this one ends; null: nobody said so.';
COMMENT ON COLUMN catalog.contracts.account_from IS
    'Since when the account''s row says so. What it was before, this view does not know.';
COMMENT ON COLUMN catalog.contracts.changed_at IS 'When one of the three rows was changed last.';
"""


def upgrade() -> None:
    """Make the table, the view and the two functions."""
    op.execute(ENDED)
    op.execute(CONTRACTS)


def downgrade() -> None:
    """Remove them again."""
    op.execute("DROP VIEW catalog.contracts")
    op.execute("DROP FUNCTION catalog.contracts_right_until(timestamptz), catalog.contracts_at(timestamptz)")
    op.execute("DROP TRIGGER keep_renamed_price ON catalog.prices")
    op.execute("DROP TRIGGER keep_ended_price ON catalog.prices")
    op.execute("DROP FUNCTION catalog.keep_ended_price()")
    op.execute("DROP TABLE catalog.ended_prices")
