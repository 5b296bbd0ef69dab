"""Pools: accounts below a parent whose months have one total for tiers and packages.

A row says from which month on, and until which, an account is in the pool of a parent. Bills ask `pool_parts` for an
account's part of the pool's ladders: with its owner's rights, as a key that sees one member sees no usage of others.
"""

from alembic import op

revision = "0132"
down_revision = "0131"

# The rule of migration 0003: who names no account sees none.
TABLE = """
CREATE TABLE catalog.pools (
    account     text NOT NULL CHECK (account <> ''),
    first_month date NOT NULL CHECK (first_month = date_trunc('month', first_month) AND isfinite(first_month)),
    end_month   date CHECK (end_month = date_trunc('month', end_month) AND isfinite(end_month)),
    parent      text NOT NULL CHECK (parent <> ''),
    changed_by  text,
    changed_at  timestamptz,
    PRIMARY KEY (account, first_month),
    CONSTRAINT end_after_first CHECK (end_month >= first_month)
);
CREATE INDEX pools_by_parent ON catalog.pools (parent);
COMMENT ON TABLE catalog.pools IS
    'Which accounts below a parent have one total for tiers and packages, in which months of their calendar.';
CREATE TRIGGER keep_author BEFORE INSERT OR UPDATE ON catalog.pools
    FOR EACH ROW EXECUTE FUNCTION catalog.keep_author();
ALTER TABLE catalog.pools ENABLE ROW LEVEL SECURITY;
CREATE POLICY reads_named_accounts ON catalog.pools FOR SELECT USING (
    (SELECT current_setting('weir.accounts', true) = '*')
    OR account = ANY (ARRAY(
        SELECT jsonb_array_elements_text(nullif(nullif(current_setting('weir.accounts', true), ''), '*')::jsonb)
    ))
);
CREATE CONSTRAINT TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON catalog.pools
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.record_change('changed_by', '');
"""

# Of each price version the members with a positive quantity have the part from where the versions before end, up by
# their sum, and those with a negative one from there down by theirs: so each part has one sign. A member's share is a
# function of the quantities in its part, in the order of names, and of its own place among them. Where `weir.accounts`
# is unset it answers for all, other than the rule of migration 0003: an application that reads all accounts sets
# nothing, and would else take a member's usage for a total of its own. For anybody else, bills have the lines alone
# that row-level security shows.
PARTS = """
CREATE FUNCTION pool_parts(of_month date, of_accounts text[])
RETURNS TABLE (
    account text, meter text, currency text, price_version bigint, ladder_start numeric, ladder_end numeric,
    ladder_total numeric, has_above boolean, quantities numeric[], place integer
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
#variable_conflict use_column
DECLARE
    -- Its owner is the current user here.
    asks name := coalesce(nullif(current_setting('role'), 'none'), session_user);
    shown text := nullif(current_setting('weir.accounts', true), '');
    parents text[] := ARRAY(
        SELECT DISTINCT parent FROM catalog.pools
        WHERE first_month <= of_month AND (end_month IS NULL OR end_month > of_month)
          AND (of_accounts IS NULL OR account = ANY (of_accounts))
    );
BEGIN
    IF parents = '{{}}' THEN
        RETURN;
    END IF;
    IF NOT has_table_privilege(asks, '{schema}.usage_months', 'SELECT') THEN
        RAISE EXCEPTION 'permission denied for function pool_parts' USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN QUERY
    WITH parts AS (
        SELECT pools.parent, pools.account, rung.plan, rung.model, used.meter, used.currency, used.price_version,
               rung.effective_from, sum(used.quantity) AS quantity
        FROM catalog.pools JOIN {schema}.usage_months AS used USING (account)
        JOIN {schema}.price_ladders AS rung USING (price_version)
        WHERE pools.parent = ANY (parents) AND first_month <= of_month AND (end_month IS NULL OR end_month > of_month)
          AND used.month = of_month
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 HAVING sum(used.quantity) <> 0
    ), versions AS (
        SELECT parent, plan, model, meter, currency, effective_from, price_version,
               sum(greatest(quantity, 0)) AS up, sum(least(quantity, 0)) AS down
        FROM parts GROUP BY 1, 2, 3, 4, 5, 6, 7
    ), ladder AS (
        SELECT parent, price_version, meter, currency, up, sum(up + down) OVER reached - up - down AS starts,
               sum(up + down) OVER whole AS total, down, row_number() OVER reached < count(*) OVER whole AS has_above
        FROM versions
        WINDOW whole AS (PARTITION BY parent, plan, model, meter, currency),
               reached AS (
                   PARTITION BY parent, plan, model, meter, currency ORDER BY effective_from, price_version
                   ROWS UNBOUNDED PRECEDING
               )
    ), shares AS (
        SELECT parent, account, meter, currency, price_version, quantity > 0 AS is_up,
               array_agg(quantity) OVER part AS quantities,
               row_number() OVER (
                   PARTITION BY parent, meter, currency, price_version, quantity > 0 ORDER BY account COLLATE "C"
               )::integer AS place
        FROM parts
        WINDOW part AS (
            PARTITION BY parent, meter, currency, price_version, quantity > 0 ORDER BY account COLLATE "C"
            ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
        )
    )
    SELECT shares.account, meter, currency, price_version, CASE WHEN is_up THEN starts ELSE starts + up END,
           CASE WHEN is_up THEN starts + up ELSE starts + up + down END, total,
           -- The flat price of a volume tier is charged once: with what is positive, if anything is.
           has_above OR (NOT is_up AND up > 0), shares.quantities, shares.place
    FROM shares JOIN ladder USING (parent, meter, currency, price_version)
    WHERE (of_accounts IS NULL OR shares.account = ANY (of_accounts))
      AND (shown IS NULL OR shown = '*' OR shares.account IN (
          SELECT jsonb_array_elements_text(nullif(shown, '*')::jsonb)
      ));
END $$;
COMMENT ON FUNCTION pool_parts(date, text[]) IS
    'The part that accounts of pools have of each price version in a month, among quantities without names.';
"""

# What thresholds of money were decided by is another total from a month on, for all members.
DUE = """
CREATE FUNCTION catalog.note_pools_of_limits() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF EXISTS (SELECT FROM catalog.limits) THEN
        INSERT INTO {schema}.thresholds_due (account, since)
        SELECT pools.account, min(changed.first_month)::timestamp AT TIME ZONE 'UTC'
        FROM changed JOIN (
            SELECT parent, account FROM catalog.pools UNION SELECT parent, account FROM changed
        ) AS pools USING (parent)
        GROUP BY pools.account;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_pools_of_limits AFTER INSERT ON catalog.pools
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION catalog.note_pools_of_limits();
CREATE TRIGGER note_pools_as_they_were AFTER UPDATE ON catalog.pools
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION catalog.note_pools_of_limits();
CREATE TRIGGER note_pools_as_they_are AFTER UPDATE ON catalog.pools
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION catalog.note_pools_of_limits();
CREATE TRIGGER note_removed_pools AFTER DELETE ON catalog.pools
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION catalog.note_pools_of_limits();
"""

# All at the end of a transaction, which may change accounts and pools together. The lock is the one that an entry of
# the activity log takes: two transactions that are right alone are not checked at once, and no month is closed then.
# Each row that changed has its pools checked, which `weir.checked_pools` notes until the next statement: once is enough
# for all rows of a transaction.
CHECKED = """
CREATE FUNCTION catalog.wrong_pool(of_parents text[]) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
    WITH RECURSIVE pooled AS (
        SELECT pools.*, timezone, first_month::timestamp AT TIME ZONE coalesce(timezone, 'UTC') AS begins,
               coalesce(end_month::timestamp AT TIME ZONE coalesce(timezone, 'UTC'), 'infinity') AS ends
        FROM catalog.pools LEFT JOIN LATERAL (
            SELECT timezone FROM catalog.account_zones AS zones
            WHERE zones.account = pools.account
              AND holds_from < first_month::timestamp AT TIME ZONE 'UTC' + interval '1 day'
            ORDER BY holds_from DESC LIMIT 1
        ) AS zone ON true
        WHERE (end_month IS NULL OR end_month > first_month) AND parent = ANY (of_parents)
    ), held AS (
        SELECT pooled.account, pooled.first_month, min(plan) AS plan, min(currency) AS currency,
               count(DISTINCT (plan, currency)) AS contracts,
               -- A range between nulls has no bounds.
               coalesce(range_agg(tstzrange(history.holds_from, history.holds_until))
                   FILTER (WHERE history.account IS NOT NULL) @> tstzrange(begins, ends), false) AS is_there
        FROM pooled LEFT JOIN catalog.account_history AS history
          ON history.account = pooled.account AND history.holds_from < ends AND history.holds_until > begins
        GROUP BY pooled.account, pooled.first_month, begins, ends
    ), every AS (
        SELECT * FROM pooled JOIN held USING (account, first_month)
    ), above (account, first_month, goal, at, since, until) AS (
        SELECT account, first_month, parent, account, begins, ends FROM pooled
        UNION
        SELECT above.account, first_month, goal, history.parent, greatest(since, holds_from), least(until, holds_until)
        FROM above JOIN catalog.account_history AS history
          ON history.account = above.at AND holds_from < until AND holds_until > since
        WHERE at <> goal
    )
    SELECT problem FROM (
        SELECT 1 AS place, account,
               format('%s is in two pools in one month, from %s on', account, greatest(first_month, first))
        FROM pooled JOIN (
            SELECT account, first_month AS first, coalesce(end_month, 'infinity') AS until FROM catalog.pools
        ) AS other USING (account)
        WHERE first_month <> first AND greatest(first_month, first) < least(coalesce(end_month, 'infinity'), until)
        UNION ALL
        SELECT 2, account, format(
            '%s is not there in all of the time that it pools: give its pool an end_month before', account
        )
        FROM every WHERE NOT is_there
        UNION ALL
        SELECT 3, account, format(
            '%s has more than one plan, currency or time zone while it pools: end its pool with the month before, and '
            'let another begin', account
        )
        FROM every WHERE contracts > 1 OR EXISTS (
            SELECT FROM catalog.account_zones AS zones
            WHERE zones.account = every.account AND holds_from > begins AND holds_from < ends
              AND zones.timezone <> every.timezone
        )
        UNION ALL
        SELECT 4, every.account, format(
            '%s and %s pool below %s: must have one plan, currency and time zone, and have %s %s %s and %s %s %s',
            every.account, other.account, parent, every.plan, every.currency, every.timezone,
            other.plan, other.currency, other.timezone
        )
        FROM every JOIN every AS other USING (parent)
        WHERE every.account < other.account AND every.first_month < coalesce(other.end_month, 'infinity')
          AND other.first_month < coalesce(every.end_month, 'infinity')
          AND (every.plan, every.currency, every.timezone)
              IS DISTINCT FROM (other.plan, other.currency, other.timezone)
        UNION ALL
        SELECT 5, account, format('%s pools below %s: must be %2$s, or below it, in all of that time', account, goal)
        FROM above WHERE at IS NULL
        UNION ALL
        SELECT 6, account, format(
            '%s pools, and its plan %s includes units: they come off before tiers, by account', account, plan
        )
        FROM every JOIN (
            -- Terms hold until the next ones of their plan and currency.
            SELECT plan, currency, effective_from, terms, least(
                       ended_at, lead(effective_from) OVER (PARTITION BY plan, currency ORDER BY effective_from)
                   ) AS until
            FROM (
                SELECT plan, currency, effective_from, terms, 'infinity'::timestamptz AS ended_at FROM catalog.prices
                WHERE model = {plan_model}
                UNION ALL
                SELECT plan, currency, effective_from, terms, ended_at FROM catalog.ended_prices
                WHERE model = {plan_model}
            ) AS versions
        ) AS priced USING (plan, currency)
        WHERE coalesce(terms -> 'included', '{{}}') NOT IN ('{{}}', 'null')
          AND effective_from < ends AND until > greatest(begins, effective_from)
        UNION ALL
        SELECT 7, parent, format('more than {max_members} accounts pool below %s in %s', parent, first_month)
        FROM (
            SELECT every.parent, every.first_month FROM every JOIN every AS other USING (parent)
            WHERE other.first_month <= every.first_month
              AND (other.end_month IS NULL OR other.end_month > every.first_month)
            GROUP BY every.parent, every.account, every.first_month HAVING count(*) > {max_members}
        ) AS large
    ) AS problems (place, account, problem) ORDER BY place, account, problem LIMIT 1
$$;

CREATE FUNCTION catalog.check_pools() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    problem text;
    parents text[];
    checked jsonb := coalesce(nullif(current_setting('weir.checked_pools', true), ''), '[]');
    changed text := coalesce(to_jsonb(NEW) ->> 'account', to_jsonb(OLD) ->> 'account');
BEGIN
    IF TG_TABLE_NAME = 'prices' AND to_jsonb(NEW) ->> 'model' IS DISTINCT FROM {plan_model} THEN
        RETURN NULL;
    END IF;
    PERFORM FROM {schema}.activity_head FOR UPDATE;
    IF TG_TABLE_NAME = 'pools' THEN
        -- An invoice never changes: what of a month is on one stays.
        SELECT format(
            '%s has invoices of %s: a pool begins, ends or changes with a month of which no member has one',
            invoices.account, to_char(invoices.period, 'YYYY-MM')
        ) INTO problem
        FROM (
            SELECT row ->> 'parent' AS parent, row ->> 'account' AS account, (row ->> 'first_month')::date AS since,
                   coalesce((row ->> 'end_month')::date, 'infinity') AS until
            FROM (VALUES (to_jsonb(OLD)), (to_jsonb(NEW))) AS sides (row)
            WHERE row ->> 'parent' IS NOT NULL
        ) AS side CROSS JOIN LATERAL (
            SELECT side.account, since AS first_month, NULL::date AS end_month
            UNION ALL
            SELECT account, first_month, end_month FROM catalog.pools AS other WHERE other.parent = side.parent
        ) AS member JOIN {schema}.invoices ON invoices.account = member.account
        WHERE period >= since AND period < until
          AND period >= member.first_month AND (member.end_month IS NULL OR period < member.end_month)
          AND (
            -- What was before and is after is no change.
            TG_OP <> 'UPDATE' OR to_jsonb(OLD) ->> 'parent' <> to_jsonb(NEW) ->> 'parent'
            OR (to_jsonb(OLD) ->> 'first_month') <> (to_jsonb(NEW) ->> 'first_month')
            OR to_jsonb(OLD) ->> 'account' <> to_jsonb(NEW) ->> 'account'
            OR period >= least(
                coalesce((to_jsonb(OLD) ->> 'end_month')::date, 'infinity'),
                coalesce((to_jsonb(NEW) ->> 'end_month')::date, 'infinity')
            )
          )
        ORDER BY period, invoices.account LIMIT 1;
        IF problem IS NOT NULL THEN
            RAISE EXCEPTION '%', problem USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        parents := ARRAY[to_jsonb(OLD) ->> 'parent', to_jsonb(NEW) ->> 'parent'];
    ELSIF NOT EXISTS (SELECT FROM catalog.pools) THEN
        RETURN NULL;
    ELSIF TG_TABLE_NAME = 'prices' THEN
        parents := ARRAY(SELECT DISTINCT parent FROM catalog.pools);
    ELSE
        -- Its own pools, and those of all that were ever below it.
        WITH RECURSIVE below (account) AS (
            SELECT changed
            UNION
            SELECT history.account FROM below JOIN catalog.account_history AS history ON history.parent = below.account
        )
        SELECT array_agg(DISTINCT parent) INTO parents FROM catalog.pools WHERE account IN (SELECT account FROM below);
    END IF;
    parents := ARRAY(SELECT parent FROM unnest(parents) AS parent WHERE NOT checked ? parent);
    IF parents = '{{}}' THEN
        RETURN NULL;
    END IF;
    problem := catalog.wrong_pool(parents);
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    PERFORM set_config('weir.checked_pools', (checked || to_jsonb(parents))::text, true);
    RETURN NULL;
END $$;
CREATE FUNCTION catalog.forget_checked_pools() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM set_config('weir.checked_pools', '', true);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER check_pools AFTER INSERT OR UPDATE OR DELETE ON catalog.pools
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION catalog.check_pools();
CREATE CONSTRAINT TRIGGER check_pools AFTER INSERT OR UPDATE OR DELETE ON catalog.account_history
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION catalog.check_pools();
CREATE CONSTRAINT TRIGGER check_pools AFTER INSERT OR UPDATE OR DELETE ON catalog.account_zones
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION catalog.check_pools();
CREATE CONSTRAINT TRIGGER check_pools AFTER INSERT OR UPDATE ON catalog.prices
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION catalog.check_pools();
CREATE TRIGGER forget_checked_pools BEFORE INSERT OR UPDATE OR DELETE ON catalog.pools
    FOR EACH STATEMENT EXECUTE FUNCTION catalog.forget_checked_pools();
CREATE TRIGGER forget_checked_pools BEFORE INSERT OR UPDATE OR DELETE ON catalog.account_history
    FOR EACH STATEMENT EXECUTE FUNCTION catalog.forget_checked_pools();
CREATE TRIGGER forget_checked_pools BEFORE INSERT OR UPDATE OR DELETE ON catalog.account_zones
    FOR EACH STATEMENT EXECUTE FUNCTION catalog.forget_checked_pools();
CREATE TRIGGER forget_checked_pools BEFORE INSERT OR UPDATE OR DELETE ON catalog.prices
    FOR EACH STATEMENT EXECUTE FUNCTION catalog.forget_checked_pools();

CREATE FUNCTION catalog.refuse_no_pools() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION 'truncate of pools is refused: delete rows, so that invoices are looked at';
END $$;
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON catalog.pools
    FOR EACH STATEMENT EXECUTE FUNCTION catalog.refuse_no_pools();
"""
MAX_MEMBERS = 100
PLAN_MODEL = '\'plan{"+":"month"}\''


def upgrade() -> None:
    """Make the table, empty: each account has its own total."""
    schema = op.get_bind().exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    op.execute((TABLE + PARTS + DUE).format(schema=schema))
    op.execute(CHECKED.format(schema=schema, plan_model=PLAN_MODEL, max_members=MAX_MEMBERS))


def downgrade() -> None:
    """Remove it; what pools is refused before (`downgrade.USES`)."""
    for table in ("account_history", "account_zones", "prices"):
        op.execute(f"DROP TRIGGER check_pools ON catalog.{table}")
        op.execute(f"DROP TRIGGER forget_checked_pools ON catalog.{table}")
    op.execute("DROP TABLE catalog.pools")
    op.execute("DROP FUNCTION pool_parts(date, text[])")
    op.execute("DROP FUNCTION catalog.check_pools(), catalog.wrong_pool(text[]), catalog.note_pools_of_limits()")
    op.execute("DROP FUNCTION catalog.forget_checked_pools(), catalog.refuse_no_pools()")
