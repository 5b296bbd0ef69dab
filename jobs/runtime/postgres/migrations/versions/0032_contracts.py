"""What each account pays for each meter, now or at any instant: `catalog.contracts`, a view that is never behind.

Read with the rights of whoever asks, so the policies of the three tables decide what is seen.
"""

from alembic import op

revision = "0032"
down_revision = "0031"

# Instants that no event can have, and that no reader but Postgres knows (infinity): ingestion refuses such a change, so
# they begin and end nothing here either.
FIRST, LAST = "'0001-01-01 00:00:00Z'::timestamptz", "'9999-12-31 23:59:59.999999Z'::timestamptz"

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
               lead(prices.effective_from) OVER (
                   PARTITION BY prices.model, prices.meter, prices.currency ORDER BY prices.effective_from
               ) AS in_force_until
        FROM catalog.prices
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
        (SELECT min(effective_from) FROM catalog.accounts WHERE effective_from > at AND effective_from <= {LAST})
    );
END;
COMMENT ON FUNCTION catalog.contracts_right_until(timestamptz) IS
    'When the next price or account begins: until then what is in force at `at` stays, unless somebody changes a row.';

CREATE VIEW catalog.contracts WITH (security_invoker = true) AS SELECT * FROM catalog.contracts_at(now());
COMMENT ON VIEW catalog.contracts IS
    'What each account pays for a unit of each meter now, as accounts, plans and prices say at this moment; what usage '
    'was priced with stands in joins'' versions.';
COMMENT ON COLUMN catalog.contracts.in_force_until IS
    'When the next price of the same plan, model, meter and currency begins; null: none is announced.';
COMMENT ON COLUMN catalog.contracts.account_from IS
    'Since when the account''s row says so. What it was before, this view does not know.';
COMMENT ON COLUMN catalog.contracts.changed_at IS 'When one of the three rows was changed last.';
"""


def upgrade() -> None:
    """Make the view and the two functions."""
    op.execute(CONTRACTS)


def downgrade() -> None:
    """Remove them again."""
    op.execute("DROP VIEW catalog.contracts")
    op.execute("DROP FUNCTION catalog.contracts_right_until(timestamptz), catalog.contracts_at(timestamptz)")
