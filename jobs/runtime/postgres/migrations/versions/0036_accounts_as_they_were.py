"""The catalog keeps what an account was: parents and contracts go by what held then, not by the rows of now.

`catalog.account_history` has the rule of joins' versions (`metering.pricing.account_as_of`) as stretches of time. And
the database refuses a price that it would round, and one of a meter that nobody ever declared.
"""

from alembic import op

from jobs.runtime.errors import Refused

revision = "0036"
down_revision = "0035"

# Instants that no event can have (migration 0032): a change from then on is refused by ingestion.
FIRST, LAST = "'0001-01-01 00:00:00Z'::timestamptz", "'9999-12-31 23:59:59.999999Z'::timestamptz"

# The rule of migration 0003: who names no account sees none.
NAMED = """(
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
)"""

# What an account was before its row of now is not known here: as until now, its parent is that of the row.
HISTORY = f"""
CREATE TABLE catalog.account_history (
    account        text NOT NULL,
    holds_from     timestamptz NOT NULL,
    holds_until    timestamptz NOT NULL DEFAULT 'infinity',
    name           text NOT NULL,
    plan           text NOT NULL,
    currency       text NOT NULL,
    parent         text,
    effective_from timestamptz NOT NULL,
    changed_at     timestamptz NOT NULL,
    PRIMARY KEY (account, holds_from),
    CHECK (holds_from < holds_until)
);
CREATE INDEX account_history_by_plan ON catalog.account_history (plan);
CREATE INDEX account_history_by_parent ON catalog.account_history (parent) WHERE parent IS NOT NULL;
COMMENT ON TABLE catalog.account_history IS
    'What each account was, is and will be, kept by triggers: [holds_from, holds_until). Between stretches, and after '
    'the last, the account is deleted.';
COMMENT ON COLUMN catalog.account_history.holds_from IS
    'The effective_from of the row, or else when it was changed. The first row of an account holds from the beginning '
    'of time (-infinity).';
COMMENT ON COLUMN catalog.account_history.effective_from IS 'As holds_from, also of the first row.';

LOCK TABLE catalog.accounts IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO catalog.account_history
SELECT account, '-infinity', 'infinity', name, plan, currency, parent, begins, changed_at
FROM catalog.accounts, coalesce(effective_from, changed_at) AS begins WHERE begins BETWEEN {FIRST} AND {LAST};

ALTER TABLE catalog.account_history ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON catalog.account_history FOR SELECT USING {NAMED};
-- What plans, prices, contracts and accounts_below show of an account is asked of its history, as whoever reads them.
DO $$
DECLARE
    reader text;
BEGIN
    FOR reader IN
        SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
        FROM pg_class CROSS JOIN aclexplode(relacl)
        WHERE oid = 'catalog.accounts'::regclass AND privilege_type = 'SELECT' AND grantee <> relowner
    LOOP
        EXECUTE format('GRANT SELECT ON catalog.account_history TO %s', reader);
    END LOOP;
END $$;
"""

# With the owner's rights: other systems may edit the catalog, and need none on its history.
KEPT = f"""
CREATE FUNCTION catalog.end_account_history(ended text, at timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    DELETE FROM catalog.account_history WHERE account = ended AND holds_from >= at;
    UPDATE catalog.account_history SET holds_until = at WHERE account = ended AND holds_until > at;
END $$;

CREATE FUNCTION catalog.keep_account_history() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    begins timestamptz;
    holds timestamptz;
BEGIN
    -- While a column has another name its changes are rejected, and joins goes by the row of before.
    IF NOT (CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END)
        ?& '{{account,name,plan,currency,parent,effective_from,changed_at,deleted_at}}'::text[]
    THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND NEW.account <> OLD.account THEN
        PERFORM catalog.end_account_history(OLD.account, coalesce(OLD.deleted_at, now()));
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN NULL;
    END IF;
    begins := coalesce(NEW.effective_from, NEW.changed_at);
    IF begins BETWEEN {FIRST} AND {LAST} THEN
        -- The newest row holds from its own instant on, against all that was announced before.
        holds := CASE WHEN EXISTS (SELECT FROM catalog.account_history WHERE account = NEW.account)
            THEN begins ELSE '-infinity' END;
        PERFORM catalog.end_account_history(NEW.account, holds);
        INSERT INTO catalog.account_history VALUES (
            NEW.account, holds, 'infinity', NEW.name, NEW.plan, NEW.currency, NEW.parent, begins, NEW.changed_at
        );
    END IF;
    RETURN NULL;
END $$;
-- Also when nothing changes: so a row is told again that was rejected (`weir catalog reconcile`).
CREATE TRIGGER keep_account_history AFTER INSERT OR UPDATE OR DELETE ON catalog.accounts
    FOR EACH ROW EXECUTE FUNCTION catalog.keep_account_history();

-- A deletion without deleted_at holds from its commit, as joins has it. Until then there is its transaction's start.
CREATE FUNCTION catalog.keep_end_of_account() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    begins timestamptz;
    began_since boolean;
BEGIN
    IF NOT to_jsonb(OLD) ?& '{{account,name,plan,currency,parent,effective_from,changed_at}}'::text[]
        OR moment = now()
        OR EXISTS (SELECT FROM catalog.account_history WHERE account = OLD.account AND holds_until > now())
    THEN
        RETURN NULL;
    END IF;
    -- What began after the transaction did was in force until now.
    begins := coalesce(OLD.effective_from, OLD.changed_at);
    began_since := begins >= now() AND begins < moment;
    UPDATE catalog.account_history SET holds_until = CASE WHEN began_since THEN begins ELSE moment END
    WHERE account = OLD.account AND holds_until = now();
    IF began_since THEN
        INSERT INTO catalog.account_history VALUES (
            OLD.account, begins, moment, OLD.name, OLD.plan, OLD.currency, OLD.parent, begins, OLD.changed_at
        );
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER keep_end_of_account AFTER DELETE OR UPDATE OF account ON catalog.accounts
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.deleted_at IS NULL)
    EXECUTE FUNCTION catalog.keep_end_of_account();
"""
NO_HISTORY = """
DROP TRIGGER keep_end_of_account ON catalog.accounts;
DROP TRIGGER keep_account_history ON catalog.accounts;
DROP FUNCTION catalog.keep_end_of_account();
DROP FUNCTION catalog.keep_account_history();
DROP FUNCTION catalog.end_account_history(text, timestamptz);
DROP TABLE catalog.account_history;
"""

# Whose plan it is: of who has it now, or will have it.
READS = """
DROP POLICY reads_named_accounts ON catalog.plans;
DROP POLICY reads_named_accounts ON catalog.prices;
CREATE POLICY reads_named_accounts ON catalog.plans FOR SELECT USING (
    (SELECT current_setting('weir.accounts', true) = '*') OR plan IN ({plans})
);
CREATE POLICY reads_named_accounts ON catalog.prices FOR SELECT USING (
    (SELECT current_setting('weir.accounts', true) = '*') OR plan IN ({plans})
);
"""
PLANS_OF_NOW = "SELECT plan FROM catalog.accounts"
PLANS_IN_FORCE = "SELECT plan FROM catalog.account_history WHERE holds_until > now()"

# The plan's name is part of a contract, so the plan stays as long as one is in force.
PLANS_STAY = """
CREATE FUNCTION catalog.refuse_used_plan() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    used_until timestamptz := greatest(
        (SELECT max(holds_until) FROM catalog.account_history WHERE plan = OLD.plan AND holds_until > now()),
        (SELECT max(ended_at) FROM catalog.ended_prices WHERE plan = OLD.plan AND ended_at > now())
    );
BEGIN
    IF used_until IS NOT NULL THEN
        RAISE EXCEPTION 'plan % is in use until %: an account has it, or a price of it is in force until then',
            quote_literal(OLD.plan), used_until USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER refuse_used_plan AFTER DELETE ON catalog.plans
    FOR EACH ROW EXECUTE FUNCTION catalog.refuse_used_plan();
"""

# One of any depth would be one too many: a circle of which one half has ended yet is refused by nobody.
BELOW = """
CREATE FUNCTION catalog.accounts_below_at(at timestamptz) RETURNS TABLE (head text, account text, depth integer)
LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
    WITH RECURSIVE in_force AS (
        SELECT h.account, h.parent FROM catalog.account_history AS h WHERE h.holds_from <= at AND h.holds_until > at
    ), below (head, account, depth) AS (
        SELECT known.account, known.account, 0
        FROM (SELECT f.account FROM in_force AS f UNION SELECT f.parent FROM in_force AS f WHERE f.parent IS NOT NULL)
            AS known
        UNION ALL
        SELECT below.head, f.account, below.depth + 1
        FROM below JOIN in_force AS f ON f.parent = below.account WHERE below.depth < 8
    )
    SELECT below.head, below.account, min(below.depth) FROM below GROUP BY below.head, below.account;
END;
COMMENT ON FUNCTION catalog.accounts_below_at(timestamptz) IS
    'Every account of an instant with itself and all that stood below it then, how far each.';
CREATE OR REPLACE VIEW catalog.accounts_below WITH (security_invoker = true) AS
SELECT * FROM catalog.accounts_below_at(now());
COMMENT ON VIEW catalog.accounts_below IS
    'Every account with itself and all that stand below it now, how far each; at another instant: accounts_below_at.';
"""
BELOW_OF_NOW = """
CREATE OR REPLACE VIEW catalog.accounts_below WITH (security_invoker = true) AS
WITH RECURSIVE below (head, account, depth) AS (
    SELECT account, account, 0 FROM catalog.accounts
    UNION ALL
    SELECT below.head, a.account, below.depth + 1
    FROM below JOIN catalog.accounts AS a ON a.parent = below.account WHERE below.depth < 8
)
SELECT head, account, min(depth) AS depth FROM below GROUP BY head, account;
COMMENT ON VIEW catalog.accounts_below IS 'Every account with itself and all that stand below it, how far each.';
DROP FUNCTION catalog.accounts_below_at(timestamptz);
"""

# The form of migration 0032, for its reasons: periods per plan, and no expression is compared.
_CONTRACTS = f"""
CREATE OR REPLACE FUNCTION catalog.contracts_at(at timestamptz) RETURNS TABLE (
    account text, account_name text, plan text, plan_name text, currency text, model text, meter text,
    unit_price numeric, effective_from timestamptz, in_force_until timestamptz, account_from timestamptz,
    changed_at timestamptz
) LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT accounts.account, accounts.name, accounts.plan, plans.name, accounts.currency, periods.model, periods.meter,
           periods.unit_price, periods.effective_from, {{until}}, {{begins}},
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
    JOIN {{accounts}} AS accounts ON accounts.plan = plans.plan AND accounts.currency = periods.currency
    WHERE {{holds}}
      AND periods.effective_from <= at AND (periods.in_force_until > at OR periods.in_force_until IS NULL);
END;
COMMENT ON FUNCTION catalog.contracts_at(timestamptz) IS '{{comment}}';

CREATE OR REPLACE FUNCTION catalog.contracts_right_until(at timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT least(
        (SELECT min(effective_from) FROM catalog.prices WHERE effective_from > at AND effective_from <= {LAST}),
        (SELECT min(effective_from) FROM catalog.ended_prices WHERE effective_from > at),
        (SELECT min(ended_at) FROM catalog.ended_prices WHERE ended_at > at),
        {{changes}}
    );
END;
"""
CONTRACTS = _CONTRACTS.format(
    until="least(periods.in_force_until, nullif(accounts.holds_until, 'infinity'))",
    begins="accounts.effective_from",
    accounts="catalog.account_history",
    holds="accounts.effective_from <= at AND accounts.holds_until > at",
    comment="What each account pays for a unit of each meter at an instant, by all that the catalog has been told.",
    changes=f"""(
            SELECT min(effective_from) FROM catalog.account_history
            WHERE effective_from > at AND effective_from < holds_until
        ),
        (SELECT min(holds_until) FROM catalog.account_history WHERE holds_until > at AND holds_until <= {LAST})""",
)
CONTRACTS_OF_ROWS = _CONTRACTS.format(
    until="periods.in_force_until",
    begins="coalesce(accounts.effective_from, accounts.changed_at)",
    accounts="catalog.accounts",
    holds=f"""(
        accounts.effective_from BETWEEN {FIRST} AND at OR accounts.effective_from IS NULL AND accounts.changed_at <= at
    )""",
    comment="The rows of accounts, plans and prices as they are now, joined as they are in force at an instant.",
    changes=f"""(
            SELECT min(effective_from) FROM catalog.accounts WHERE effective_from > at AND effective_from <= {LAST}
        )""",
)
COMMENTS = """
COMMENT ON VIEW catalog.contracts IS
    'What each account pays for a unit of each meter now, by all that the catalog has been told; what usage was priced '
    'with stands in joins'' versions.';
COMMENT ON COLUMN catalog.contracts.in_force_until IS
    'When the next price of the same plan, model, meter and currency begins, or this one or the account ends, or the '
    'account is otherwise; null: nobody said so.';
COMMENT ON COLUMN catalog.contracts.account_from IS
    'Since when the account is as it is then. Before its first row begins it is not listed, and usage has its price.';
"""

# A type with a scale rounds before any trigger sees it. Rows keep the form that they had: twelve decimals.
UNIT_PRICE = """
CREATE OR REPLACE FUNCTION catalog.contracts_at(at timestamptz) RETURNS TABLE (
    account text, account_name text, plan text, plan_name text, currency text, model text, meter text,
    unit_price numeric, effective_from timestamptz, in_force_until timestamptz, account_from timestamptz,
    changed_at timestamptz
) LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL::numeric, at, at, at, at WHERE false;
END;
ALTER TABLE catalog.prices ALTER unit_price TYPE {kind};
"""
# Of others: Weir's own views name functions, which are replaced.
VIEWS_OF_PRICES = """
SELECT string_agg(DISTINCT ev_class::regclass::text, ', ')
FROM pg_depend JOIN pg_rewrite ON pg_rewrite.oid = objid AND classid = 'pg_rewrite'::regclass
JOIN pg_attribute ON attrelid = refobjid AND attnum = refobjsubid
WHERE refclassid = 'pg_class'::regclass AND refobjid = 'catalog.prices'::regclass AND attname = 'unit_price'
"""
# In the form that follows the table to another schema.
METERS = """
CREATE FUNCTION catalog.was_declared(named text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM meters WHERE meter = named);
END;
COMMENT ON FUNCTION catalog.was_declared(text) IS 'Whether an application has ever declared this meter.';

CREATE FUNCTION catalog.check_price() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    -- While a column has another name nobody is told of the row.
    IF NOT to_jsonb(NEW) ?& '{plan,model,meter,currency,effective_from,unit_price}'::text[] THEN
        RETURN NEW;
    END IF;
    IF NEW.unit_price IN ('NaN', 'Infinity') OR NEW.unit_price >= 100000000 THEN
        RAISE EXCEPTION 'a price of % is % a unit: it must be less than 100000000', quote_literal(NEW.model),
            NEW.unit_price USING ERRCODE = 'numeric_value_out_of_range';
    END IF;
    IF scale(trim_scale(NEW.unit_price)) > 12 THEN
        RAISE EXCEPTION 'a price of % is % a unit: it must have at most 12 decimals', quote_literal(NEW.model),
            NEW.unit_price USING ERRCODE = 'check_violation';
    END IF;
    NEW.unit_price := NEW.unit_price::numeric(20, 12);
    -- What was stored before anybody checked may be stored again, and `weir catalog reconcile` deletes it once more.
    IF NOT catalog.was_declared(NEW.meter)
        AND coalesce(current_setting('weir.takes_any_meter', true), '') <> 'yes'
        AND NOT EXISTS (
            SELECT FROM catalog.prices AS p WHERE (p.plan, p.model, p.meter, p.currency, p.effective_from)
                = (NEW.plan, NEW.model, NEW.meter, NEW.currency, NEW.effective_from)
        )
    THEN
        RAISE EXCEPTION 'a price of % is for the meter %, which no application has ever declared: declare it first '
            '(meters in the configuration), and start them', quote_literal(NEW.model), quote_literal(NEW.meter)
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER check_price BEFORE INSERT OR UPDATE ON catalog.prices
    FOR EACH ROW EXECUTE FUNCTION catalog.check_price();
"""
NO_METERS = """
DROP TRIGGER check_price ON catalog.prices;
DROP FUNCTION catalog.check_price();
DROP FUNCTION catalog.was_declared(text);
"""


def upgrade() -> None:
    """Begin the history with the rows of now, and have everything that looks back read it.

    Raises Refused where views of others read the column whose type changes.
    """
    _refuse_views()
    op.execute(HISTORY)
    op.execute(KEPT)
    op.execute(BELOW)
    op.execute(UNIT_PRICE.format(kind="numeric"))
    op.execute(CONTRACTS)
    op.execute(COMMENTS)
    op.execute(READS.format(plans=PLANS_IN_FORCE))
    op.execute(PLANS_STAY)
    op.execute(METERS)


def _refuse_views() -> None:
    views = op.get_bind().exec_driver_sql(VIEWS_OF_PRICES).scalar()
    if views:
        raise Refused(
            f"catalog.prices.unit_price gets another type, which Postgres refuses while views read it ({views}): "
            "drop them, migrate, and make them again. Nothing was changed"
        )


def downgrade() -> None:
    """Go by the rows of now again."""
    op.execute(NO_METERS)
    op.execute("DROP TRIGGER refuse_used_plan ON catalog.plans; DROP FUNCTION catalog.refuse_used_plan()")
    op.execute(READS.format(plans=PLANS_OF_NOW))
    op.execute(UNIT_PRICE.format(kind="numeric(20, 12)"))
    op.execute(CONTRACTS_OF_ROWS)
    op.execute(BELOW_OF_NOW)
    op.execute(NO_HISTORY)
